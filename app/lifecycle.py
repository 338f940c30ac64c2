"""The phases of the process, and what follows from them for probes, requests and a stop.

    STARTING ── READY ── DRAINING ── STOPPED        FAILED from any of the first three

A drain settles (requests are still taken while load balancers let go), then finishes what is in
hand, then cuts what is left. Times are seconds on the clock that the life cycle is given.
"""

import enum
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.errors import Draining, EngineDead, Stalled, Starting, TidegateError
from app.settings import LifecycleSettings


class Phase(enum.StrEnum):
    """What the process is doing; the value is the label of `tidegate_phase`."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
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
    Phase.READY: frozenset({Phase.DRAINING, Phase.STOPPED, Phase.FAILED}),
    Phase.DRAINING: frozenset({Phase.STOPPED, Phase.FAILED}),
    Phase.STOPPED: frozenset(),
    Phase.FAILED: frozenset(),
}


def can_become(now: Phase, new: Phase) -> bool:
    """Whether the phase `new` may follow `now`; the ends are final."""
    return new in _NEXT[now]


class DrainStep(enum.Enum):
    """What a drain does at a moment, in this order."""

    SETTLE = enum.auto()
    FINISH = enum.auto()
    CUT = enum.auto()
    OVER = enum.auto()


@dataclass(frozen=True)
class Drain:
    """A drain that began at `began_at`."""

    began_at: float
    settle_s: float
    timeout_s: float

    @property
    def ends_at(self) -> float:
        """When what is left is cut, at the latest."""
        return self.began_at + self.settle_s + self.timeout_s

    def settled(self, now: float) -> bool:
        """Whether requests are refused."""
        return now >= self.began_at + self.settle_s

    def step(self, now: float, in_flight: int, *, hopeless: bool = False) -> DrainStep:
        """What there is to do.

        Args:
            now: the time.
            in_flight: requests in hand.
            hopeless: nothing that is in hand will ever finish.

        """
        if in_flight and (hopeless or now >= self.ends_at):
            return DrainStep.CUT
        if not self.settled(now):
            return DrainStep.SETTLE
        return DrainStep.FINISH if in_flight else DrainStep.OVER


class Lifecycle:
    """The current phase and what it means.

    Attributes:
        stage: while starting.
        in_flight: requests for the engine that are in hand.
        stalled_s: how long an engine has had work and made no step.
        stuck_s: how long all that have work have made none.
        drain: set when it has begun.

    """

    def __init__(
        self, settings: LifecycleSettings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings or LifecycleSettings()
        self.clock = clock
        self.phase = Phase.STARTING
        self.stage = Stage.IMPORTING
        self.in_flight = 0
        self.stalled_s = 0.0
        self.stuck_s = 0.0
        self.drain: Drain | None = None

    def become(self, phase: Phase) -> None:
        if can_become(self.phase, phase):
            self.phase = phase

    def begin_drain(self) -> None:
        """Begin to drain; a second time, or when there is nothing to drain, changes nothing."""
        if can_become(self.phase, Phase.DRAINING):
            limits = self.settings
            self.drain = Drain(self.clock(), limits.drain_settle_s, limits.drain_timeout_s)
            self.become(Phase.DRAINING)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold a request in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    @property
    def failed(self) -> bool:
        """Whether the service ended, or is ending, without having been told to."""
        return self.phase is Phase.FAILED

    @property
    def closing(self) -> bool:
        """Whether connections are given up: clients are to open their next one elsewhere."""
        return self.phase not in (Phase.STARTING, Phase.READY)

    @property
    def drain_left_s(self) -> float:
        """Time until what is in flight is cut; 0 when there is no drain."""
        return 0.0 if self.drain is None else max(0.0, self.drain.ends_at - self.clock())

    def drain_step(self) -> DrainStep | None:
        """What the drain does now; None when there is none."""
        if self.drain is None:
            return None
        hopeless = self.stuck_s >= self.settings.dead_after_s
        return self.drain.step(self.clock(), self.in_flight, hopeless=hopeless)

    def refusal(self) -> TidegateError | None:
        """Why no request can be taken now; None when one can."""
        if self.phase is Phase.DRAINING and self.drain is not None:
            return Draining() if self.drain.settled(self.clock()) else None
        return self._ended()

    def unready(self) -> TidegateError | None:
        """Why no traffic should come: `/readyz`. Earlier than requests are refused."""
        return Draining() if self.phase is Phase.DRAINING else self.unhealthy()

    def unhealthy(self) -> TidegateError | None:
        """Why the engine does not serve, whoever asks: `/health`. A drain is no reason."""
        return self._ended() or self._stalled(self.settings.stall_timeout_s)

    def unalive(self) -> TidegateError | None:
        """Why a restart is needed: `/livez`."""
        return EngineDead() if self.failed else self._stalled(self.settings.dead_after_s)

    def _stalled(self, limit_s: float) -> TidegateError | None:
        return Stalled(self.stalled_s) if self.stalled_s >= limit_s else None

    def _ended(self) -> TidegateError | None:
        match self.phase:
            case Phase.STARTING:
                return Starting(self.stage.value)
            case Phase.FAILED:
                return EngineDead()
            case Phase.STOPPED:
                return Draining()
            case _:
                return None
