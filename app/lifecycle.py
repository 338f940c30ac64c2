"""The phases of the process, as the probes and the metrics tell them."""

import enum

from app.errors import EngineDead, Starting, TidegateError


class Phase(enum.StrEnum):
    """What the process is doing; the value is the label of `tidegate_phase`."""

    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


class Stage(enum.StrEnum):
    """Where a start is: what `/readyz` answers until the model is loaded."""

    IMPORTING = "importing"
    STARTING_ENGINE = "starting_engine"
    LOADING = "loading"
    WARMING = "warming"


_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.READY, Phase.STOPPED, Phase.FAILED}),
    Phase.READY: frozenset({Phase.STOPPED, Phase.FAILED}),
    Phase.STOPPED: frozenset(),
    Phase.FAILED: frozenset(),
}


def can_become(now: Phase, new: Phase) -> bool:
    """Whether the phase `new` may follow `now`; the ends are final."""
    return new in _NEXT[now]


class Lifecycle:
    """The current phase and, while starting, its stage."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.stage = Stage.IMPORTING

    def become(self, phase: Phase) -> None:
        if can_become(self.phase, phase):
            self.phase = phase

    @property
    def failed(self) -> bool:
        """Whether the service ended, or is ending, without having been told to."""
        return self.phase is Phase.FAILED

    def refusal(self) -> TidegateError | None:
        """Why no request can be taken now; None when one can."""
        if self.phase is Phase.READY:
            return None
        if self.phase is Phase.STARTING:
            return Starting(self.stage.value)
        return EngineDead()
