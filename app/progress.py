"""Tells an engine that hangs from one that has nothing to do."""

from collections.abc import Mapping

from app.workload import InHand

# One look at most counts for so much: a process that was itself stopped has seen nothing meanwhile.
_MOST_S = 1.0


class Progress:
    """How long each engine has had work in hand, and made no step.

    Work that is taken back is no sign of life: what a hanging engine holds ends when the clients
    lose their patience. So from work without a step on, only a step, or an answer to a question
    that the engine's own loop has to answer, ends the wait.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._steps: dict[int, float | None] = {}
        self._waited: dict[int, float] = {}
        self._busy: set[int] = set()

    def observe(self, now: float, engines: Mapping[int, InHand]) -> None:
        """Look at what the engines have in hand; several times a second."""
        passed = 0.0 if self._at is None else min(now - self._at, _MOST_S)
        self._at = now
        for engine, hand in engines.items():
            if self._steps.get(engine) != hand.last_step_at:
                self._waited[engine] = 0.0
            elif hand.sequences or self._waited.get(engine):
                self._waited[engine] = self._waited.get(engine, 0.0) + passed
            self._steps[engine] = hand.last_step_at
        self._busy = {engine for engine, hand in engines.items() if hand.sequences}

    @property
    def stalled_s(self) -> float:
        """Seconds that the slowest engine has not moved for."""
        return max(self._waited.values(), default=0.0)

    @property
    def stuck_s(self) -> float:
        """Seconds that no engine which has work has moved for: nothing in hand comes nearer."""
        return min((self._waited.get(engine, 0.0) for engine in self._busy), default=0.0)

    @property
    def unsure(self) -> bool:
        """Whether no step will tell: there is nothing in hand, but something was."""
        return not self._busy and self.stalled_s > 0.0

    def answered(self) -> None:
        """The engines' loops have come round."""
        self._waited.clear()
