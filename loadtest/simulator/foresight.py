"""What the front door learns, and what it expects from that: `app/admission/` in small.

`tests/loadtest/simulator/test_foresight.py` holds each part against the service's own.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

REMEMBERED = 256
ASSUMED = 128.0
PACE_MEMORY_S = 1.0
PREFILLS = 32
LONG_PROMPT = 256
MARGIN_FORGET_S = 30.0
MARGIN_QUANTILE = 0.98
LONG = 0.95
REFUSED_S = 2.0


class Lengths:
    """Tokens to come of a sequence, by the lengths of those that ended."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, bool]] = deque()
        self._ordered: list[int] = []
        self._sums: list[int] | None = [0]
        self._limits = 0

    def ended(self, tokens: int, *, at_limit: bool) -> None:
        """Learn from one, and forget the oldest."""
        if len(self._ended) == REMEMBERED:
            oldest, had_limit = self._ended.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
            self._limits -= had_limit
        self._ended.append((tokens, at_limit))
        insort(self._ordered, tokens)
        self._limits += at_limit
        self._sums = None

    def remaining(self, produced: int, limit: int | None) -> float:
        """At least 0; a limit is what the client asked for at most."""
        bound = math.inf if limit is None else max(0, limit - produced)
        likely = min(bound, self._residual(produced, bound))
        if limit is None:
            return likely
        full = self._limits / len(self._ended) if self._ended else 1.0
        return min(bound, likely + full * (bound - likely))

    def _residual(self, produced: int, bound: float) -> float:
        first = bisect_right(self._ordered, produced)
        longer = len(self._ordered) - first
        if not longer:
            return float(produced) or min(bound, ASSUMED)
        if self._sums is None:
            self._sums = list(accumulate(self._ordered, initial=0))
        return (self._sums[-1] - self._sums[first]) / longer - produced


class Pace:
    """Seconds per token of one sequence, and from a slot to the first token."""

    def __init__(self) -> None:
        self._prefill_s = self._prompt_token_s = 0.0
        self._seconds = self._tokens = 0.0

    @property
    def token_s(self) -> float:
        """0 while nothing is known."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def passed(self, elapsed_s: float, tokens: float) -> None:
        """Take some steps: their time, and the tokens that each sequence made in it."""
        fading = math.exp(-elapsed_s / PACE_MEMORY_S)
        self._seconds = self._seconds * fading + elapsed_s
        self._tokens = self._tokens * fading + tokens

    def prefill(self, tokens: int, elapsed_s: float) -> None:
        """Take the time from a sequence's first step to its first token."""
        self._prefill_s = _towards(self._prefill_s, elapsed_s)
        if tokens >= LONG_PROMPT:
            self._prompt_token_s = _towards(self._prompt_token_s, elapsed_s / tokens)

    def start_s(self, tokens: int) -> float:
        """From a free slot to the first token of a prompt."""
        return self.token_s + max(self._prefill_s, self._prompt_token_s * tokens)


def _towards(average: float, sample: float) -> float:
    return average + (sample - average) / PREFILLS if average else sample


class Margin:
    """What predictions have lately been too low by."""

    def __init__(self) -> None:
        self._errors: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def note(self, now_s: float, error_s: float) -> None:
        """`error_s`: actual minus predicted."""
        self._errors.append((now_s, error_s))

    def seconds(self, now_s: float) -> float:
        """At least 0."""
        while self._errors and now_s - self._errors[0][0] > MARGIN_FORGET_S:
            self._errors.popleft()
        ordered = sorted(error for _, error in self._errors)
        return max(0.0, ordered[int(MARGIN_QUANTILE * len(ordered))]) if ordered else 0.0


def slot_at(position: int, free: int, remaining_s: Sequence[float], service_s: float) -> float:
    """Seconds until the one at a position of the queue has a slot; `remaining_s` ascends."""
    if position < free or not remaining_s:
        return 0.0
    rounds, place = divmod(position - free, len(remaining_s))
    return remaining_s[place] + rounds * service_s


def kv_peak(sequences: Iterable[tuple[float, float]], block: int) -> float:
    """The most tokens that sequences hold together to their ends: (held, to come) of each."""
    held = peak = 0.0
    for count, (tokens, to_come) in enumerate(sorted(sequences, key=lambda s: -s[1]), start=1):
        held += tokens
        peak = max(peak, held + count * (to_come + block - 1))
    return peak


class Sizes:
    """How long the prompts were that came lately, and how long the longer ones of them are.

    Attributes:
        refused_at: when one was last refused because it would be late, seconds.

    """

    def __init__(self) -> None:
        self.refused_at = -math.inf
        self._tokens: deque[int] = deque(maxlen=REMEMBERED)

    def note(self, tokens: int) -> None:
        self._tokens.append(tokens)

    def long(self) -> int:
        """Tokens that few of them exceed; 0 when none has come."""
        ordered = sorted(self._tokens)
        return ordered[int(LONG * len(ordered))] if ordered else 0


class Rooms:
    """For how long a prompt short ones leave room, by priority class."""

    def __init__(self) -> None:
        self._sizes: defaultdict[int, Sizes] = defaultdict(Sizes)

    def note(self, priority: int, tokens: int) -> None:
        """A prompt came that could be in time."""
        self._sizes[priority].note(tokens)

    def refused(self, priority: int, now: float) -> None:
        """One was refused because it would be late."""
        self._sizes[priority].refused_at = now

    def long(self, priority: int, now: float) -> int:
        """Tokens of a long prompt of those that are as urgent and are being refused; or 0."""
        return max(
            (
                sizes.long()
                for each, sizes in self._sizes.items()
                if each <= priority and now - sizes.refused_at <= REFUSED_S
            ),
            default=0,
        )
