"""How fast the engine is, by what it has lately done."""

import math

from app.workload import Step

MEMORY_S = 1.0
"""How fast steps fade from the pace."""
PREFILLS = 32
"""How many prefills an average is over, about."""
LONG_PROMPT = 256
"""Tokens; the time per token of shorter prompts is mostly that of the step."""


class Pace:
    """Seconds per output token of one sequence, and to the first token once it is in a batch."""

    def __init__(self) -> None:
        self._prefill_s = 0.0
        self._prompt_token_s = 0.0
        self._seconds = 0.0  # both fade; their ratio is the time of a token
        self._tokens = 0.0
        self._last: dict[int, Step] = {}

    @property
    def token_s(self) -> float:
        """0 while nothing is known."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def step(self, step: Step) -> None:
        """Take an engine's report; what passes between batches is not counted.

        Time and tokens are added up apart: a mean over steps would count long ones twice.
        """
        last = self._last.get(step.engine)
        self._last[step.engine] = step
        if last is None or last.running == 0:
            return
        elapsed = step.at - last.at
        fading = math.exp(-elapsed / MEMORY_S)
        self._seconds = self._seconds * fading + elapsed
        self._tokens = self._tokens * fading + step.generated / max(last.running, step.running)

    def prefill(self, tokens: int, seconds: float) -> None:
        """Take the time from a sequence's first step to its first token."""
        self._prefill_s = _towards(self._prefill_s, seconds)
        if tokens >= LONG_PROMPT:
            self._prompt_token_s = _towards(self._prompt_token_s, seconds / tokens)

    def start_s(self, tokens: int) -> float:
        """From a free slot to the first token of a prompt: the step in progress, and its own."""
        return self.token_s + max(self._prefill_s, self._prompt_token_s * tokens)


def _towards(average: float, sample: float) -> float:
    return average + (sample - average) / PREFILLS if average else sample
