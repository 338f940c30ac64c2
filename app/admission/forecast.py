"""When a request that comes now would have its first token, and how far that can be trusted."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REMEMBERED = 256
FORGET_S = 30.0
QUANTILE = 0.98
"""Under overload all that is accepted is near the edge."""
LONG = 0.95
"""Of the prompts, that have the same chance whatever their length."""
REFUSED_S = 2.0
"""How long room is kept for long prompts after a refusal."""


@dataclass(frozen=True)
class Outlook:
    """What is known when a request comes.

    Attributes:
        unfinished: sequences in the service.
        at_once: there is a free slot for it.
        first_token_s: predicted.
        margin_s: what its kind of prediction has lately been too low by.
        room_s: while requests are refused, what a long prompt needs more than this one.

    """

    unfinished: int
    at_once: bool
    first_token_s: float
    margin_s: float
    room_s: float = 0.0


def slot_at(position: int, free: int, remaining_s: Sequence[float], service_s: float) -> float:
    """Seconds until the sequence at a position of the queue gets a slot.

    Args:
        position: how many sequences are before it.
        free: slots that are free now.
        remaining_s: of each sequence in the batch, in ascending order.
        service_s: how long a sequence keeps its slot, for those that are not in it yet.

    """
    if position < free or not remaining_s:
        return 0.0
    rounds, place = divmod(position - free, len(remaining_s))
    return remaining_s[place] + rounds * service_s


def kv_peak(sequences: Iterable[tuple[float, float]], block: int = 1) -> float:
    """The most KV cache, in tokens, that sequences will hold together before they have all ended.

    Args:
        sequences: of each, tokens held now and tokens still to come.
        block: tokens of a block, the last of which a sequence fills only in part.

    Returns:
        The highest sum over the moments at which one ends; after Gong et al., "Past-Future
        Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025). Each sequence is taken to
        waste as much of its last block as it can.

    """
    held = peak = 0.0
    for count, (tokens, to_come) in enumerate(sorted(sequences, key=lambda s: -s[1]), start=1):
        held += tokens
        peak = max(peak, held + count * (to_come + block - 1))
    return peak


class Margin:
    """What has to be added to a prediction so that it nearly always holds, as it has lately."""

    def __init__(self) -> None:
        self._errors: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def note(self, now: float, error_s: float) -> None:
        """`error_s`: actual minus predicted."""
        self._errors.append((now, error_s))

    def seconds(self, now: float) -> float:
        """At least 0; nothing is known of what was long ago."""
        while self._errors and now - self._errors[0][0] > FORGET_S:
            self._errors.popleft()
        ordered = sorted(error for _, error in self._errors)
        return max(0.0, ordered[int(QUANTILE * len(ordered))]) if ordered else 0.0


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
