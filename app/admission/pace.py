"""How fast the engine is, by what it has lately done."""

import math

from app.workload import Step

MEMORY_S = 1.0
"""Time constant of the averages over steps."""
PREFILLS = 32
"""How many prefills an average is over, about."""
LONG_PROMPT = 256
"""Tokens; the time per token of shorter prompts is mostly that of the step."""


class Pace:
    """Seconds per output token of one sequence, and to the first token once it is in a batch."""

    def __init__(self) -> None:
        self.token_s = 0.0
        self._prefill_s = 0.0
        self._prompt_token_s = 0.0
        self._last: dict[int, Step] = {}
        self._since: dict[int, float] = {}

    def step(self, step: Step) -> None:
        """Take an engine's report; what passes between batches is not counted."""
        last = self._last.get(step.engine)
        self._last[step.engine] = step
        if last is None or last.running == 0:
            self._since[step.engine] = step.at
            return
        if step.generated == 0 or step.running == 0:
            return  # a part of a prompt, or the end of a batch
        elapsed = step.at - self._since[step.engine]
        self._since[step.engine] = step.at
        sample = elapsed * max(step.running, step.generated) / step.generated
        weight = 1.0 - math.exp(-elapsed / MEMORY_S)
        self.token_s += (sample - self.token_s) * (weight if self.token_s else 1.0)

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
