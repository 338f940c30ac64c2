"""The runs: which overlay, which load, what must be true of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.record import Outcome
from tests.e2e.hpa import manifests
from tests.e2e.hpa.load import Phase
from tests.e2e.hpa.manifests import Shipped
from tests.e2e.hpa.pace import STEP_S
from tests.e2e.hpa.verdict import Criterion

TOKENS = 64
NEED = 2.45
"""Of the constant load, in pods that are full.

Arrivals are Poisson, and what is in the service at a look is those of the last 16 s: 78 sequences,
give or take 9, where a pod has 32 slots. From 73 to 105 of them four pods are asked for.
"""
FACTOR = 8
"""By which a pod is ready sooner here (22 s) than the shipped windows were made for (180 s)."""
MOST = 5
"""Pods that this machine can have at once; the shipped maximum is more."""


@dataclass(frozen=True)
class Scenario:
    """One run.

    Attributes:
        overlay: of `deploy/k8s/overlays`.
        change: what is made of it before it is applied.
        phases: the load; `steady` names the one that is constant and looked at.
        after_s: how long to go on without load, so that replicas can go down.
        criteria: given the pods that the load needs.

    """

    name: str
    title: str
    overlay: str
    phases: tuple[Phase, ...]
    criteria: Callable[[int], Sequence[Criterion]]
    change: Callable[[Shipped], Shipped] = lambda parts: parts
    steady: str = "constant"
    after_s: float = 0.0

    def span(self) -> tuple[float, float]:
        """Begin and end of the constant load, seconds from the first phase's begin."""
        start = 0.0
        for phase in self.phases:
            if phase.name == self.steady:
                return start, start + phase.seconds
            start += phase.seconds
        raise KeyError(self.steady)

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases) + self.after_s


def one_pod(slots: int) -> float:
    """Requests/s that fill the slots of one pod."""
    return slots / (TOKENS * STEP_S)


def needed(load: float, slots: int, target: float) -> int:
    """Pods at which a load, in full pods, is at the target for what runs in each."""
    return math.ceil(load * slots / target)


def _steady(need: int, *, spare: bool) -> list[Criterion]:
    """Where the constant load is longer than two windows of the way down.

    Else no pod could be given back: not flapping would say nothing, nor would holding the need.
    """
    more = ", or one more" if spare else ""
    return [
        Criterion("no request fails or is refused", lambda f: f.failed == 0),
        Criterion("no flapping: at most one change of direction", lambda f: f.changes <= 1),
        Criterion(
            f"{need} replicas hold the load at its end{more}",
            lambda f: need <= f.settled <= need + spare,
        ),
    ]


def _and_down(need: int) -> list[Criterion]:
    """One that came by chance stays as long as that window: ten minutes."""
    down = Criterion("fewer at the end than held the load", lambda f: f.last < f.settled)
    return [*_steady(need, spare=True), down]


def _and_back(need: int) -> list[Criterion]:
    """One more is all that may come here: to have it would say nothing."""
    return [*_steady(need, spare=False), Criterion("one replica at the end", lambda f: f.last == 1)]


def _flaps(need: int) -> list[Criterion]:
    return [Criterion("it flaps: more than one change of direction", lambda f: f.changes > 1)]


def _slo(need: int) -> list[Criterion]:
    accepted_complete = Criterion(
        "what is accepted completes",
        lambda f: f.outcomes.get(Outcome.OK, 0) + f.rejected == sum(f.outcomes.values()),
    )
    return [
        Criterion(f"at least {need} replicas ready", lambda f: f.ready >= need),
        Criterion("it refuses at first", lambda f: f.rejected > 0),
        Criterion("and nothing in the last minute", lambda f: f.late_rejections == 0),
        accepted_complete,
    ]


def _up(constant_s: float) -> tuple[Phase, ...]:
    """Up in two steps: one pod with twice its load must refuse before a second one can be there,
    whatever the autoscaler does."""
    return (
        Phase("low", 0.5, 30),
        Phase("more", 1.4, 90),
        Phase("constant", NEED, constant_s),
    )


_DOWN = Phase("low again", 0.3, 30)


def _back(window_s: float, period_s: float) -> float:
    """Seconds until the last of at most four pods that must go has gone."""
    return window_s + 4 * period_s + 60


def _quick(parts: Shipped) -> Shipped:
    return manifests.capped(manifests.quickened(parts, FACTOR), MOST)


def _alone(parts: Shipped) -> Shipped:
    return _quick(manifests.only(parts, "vllm_pending_requests"))


SCENARIOS = (
    Scenario(
        name="shipped",
        title="The shipped HPA",
        overlay="gpu-hpa",
        phases=(*_up(1260), _DOWN),
        after_s=660,
        criteria=_and_down,
    ),
    Scenario(
        name="pending-alone",
        title=f"Pending alone, windows ÷ {FACTOR}",
        overlay="gpu-hpa",
        phases=_up(420),
        change=_alone,
        criteria=_flaps,
    ),
    Scenario(
        name="both",
        title=f"Pending and running as shipped, windows ÷ {FACTOR}",
        overlay="gpu-hpa",
        phases=(*_up(420), _DOWN),
        after_s=_back(600 / FACTOR, 150 / FACTOR),
        change=_quick,
        criteria=_and_back,
    ),
    Scenario(
        name="slo",
        title="Demand, with a limit on the time to first token",
        overlay="gpu-hpa-slo",
        phases=(Phase("constant", 3.0, 360),),
        criteria=_slo,
    ),
)
