"""The phases: what may follow what, what a probe and a request are told in each, how one drains."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Draining, EngineDead, Stalled, Starting
from app.lifecycle import Drain, DrainStep, Lifecycle, Phase, Stage, can_become
from app.settings import LifecycleSettings
from tests.rig.clock import Clock

ALLOWED = {
    (Phase.STARTING, Phase.READY),
    (Phase.STARTING, Phase.STOPPED),
    (Phase.STARTING, Phase.FAILED),
    (Phase.READY, Phase.DRAINING),
    (Phase.READY, Phase.STOPPED),
    (Phase.READY, Phase.FAILED),
    (Phase.DRAINING, Phase.STOPPED),
    (Phase.DRAINING, Phase.FAILED),
}


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def ready(clock: Clock) -> Lifecycle:
    limits = LifecycleSettings(
        drain_settle_s=5, drain_timeout_s=20, stall_timeout_s=30, dead_after_s=120
    )
    lifecycle = Lifecycle(limits, clock)
    lifecycle.become(Phase.READY)
    return lifecycle


@pytest.mark.parametrize(("now", "new"), list(itertools.product(Phase, Phase)))
def test_the_transition_table(now: Phase, new: Phase) -> None:
    assert can_become(now, new) is ((now, new) in ALLOWED)


def test_an_end_is_final() -> None:
    lifecycle = Lifecycle()
    lifecycle.become(Phase.FAILED)
    lifecycle.become(Phase.READY)
    lifecycle.become(Phase.STOPPED)
    lifecycle.begin_drain()
    assert lifecycle.phase is Phase.FAILED
    assert lifecycle.drain is None
    assert lifecycle.failed


@pytest.mark.parametrize("stage", list(Stage))
def test_while_starting_the_stage_is_told(stage: Stage) -> None:
    lifecycle = Lifecycle()
    lifecycle.stage = stage
    assert lifecycle.unalive() is None
    for refusal in (lifecycle.refusal(), lifecycle.unready(), lifecycle.unhealthy()):
        assert isinstance(refusal, Starting)
        assert stage.value in refusal.message
        assert refusal.code == "starting"


def test_ready_refuses_nothing_and_failed_everything(ready: Lifecycle) -> None:
    answers = (ready.refusal, ready.unready, ready.unhealthy, ready.unalive)
    assert [answer() for answer in answers] == [None] * 4
    ready.become(Phase.FAILED)
    assert [type(answer()) for answer in answers] == [EngineDead] * 4


def test_a_drain_is_unready_at_once_and_refuses_later(ready: Lifecycle, clock: Clock) -> None:
    ready.begin_drain()
    assert isinstance(ready.unready(), Draining)
    assert ready.closing
    assert (ready.refusal(), ready.unhealthy(), ready.unalive()) == (None, None, None)
    clock.now += 5
    assert isinstance(ready.refusal(), Draining)
    assert (ready.unhealthy(), ready.unalive()) == (None, None)


def test_a_second_call_does_not_begin_again(ready: Lifecycle, clock: Clock) -> None:
    ready.begin_drain()
    clock.now += 4
    ready.begin_drain()
    assert ready.drain_left_s == 21.0


def test_after_the_end_requests_are_told_to_go_elsewhere(ready: Lifecycle) -> None:
    ready.begin_drain()
    ready.become(Phase.STOPPED)
    assert isinstance(ready.refusal(), Draining)
    assert isinstance(ready.unready(), Draining)


@pytest.mark.parametrize(
    ("stalled_s", "ready_for_traffic", "alive"),
    [(0.0, True, True), (29.9, True, True), (30.0, False, True), (120.0, False, False)],
)
def test_a_stall_is_not_ready_and_later_not_live(
    ready: Lifecycle, stalled_s: float, ready_for_traffic: bool, alive: bool
) -> None:
    ready.stalled_s = stalled_s
    assert (ready.unready() is None) is ready_for_traffic
    assert (ready.unhealthy() is None) is ready_for_traffic
    assert (ready.unalive() is None) is alive
    assert ready.refusal() is None
    if not ready_for_traffic:
        assert isinstance(ready.unready(), Stalled)


@pytest.mark.parametrize(
    ("passed", "in_flight", "step"),
    [
        (0.0, 0, DrainStep.SETTLE),
        (4.9, 3, DrainStep.SETTLE),
        (5.0, 0, DrainStep.OVER),
        (5.0, 1, DrainStep.FINISH),
        (24.9, 1, DrainStep.FINISH),
        (25.0, 1, DrainStep.CUT),
        (25.0, 0, DrainStep.OVER),
    ],
)
def test_the_steps_of_a_drain(passed: float, in_flight: int, step: DrainStep) -> None:
    assert Drain(100.0, 5.0, 20.0).step(100.0 + passed, in_flight) is step


@pytest.mark.parametrize("passed", [0.0, 10.0])
def test_nobody_waits_for_an_engine_that_will_not_move(passed: float) -> None:
    drain = Drain(100.0, 5.0, 20.0)
    assert drain.step(100.0 + passed, 1, hopeless=True) is DrainStep.CUT


def test_one_engine_of_several_that_hangs_does_not_cut_what_the_others_have(
    ready: Lifecycle,
) -> None:
    ready.begin_drain()
    with ready.request():
        ready.stalled_s = 1000.0
        assert ready.drain_step() is DrainStep.SETTLE
        ready.stuck_s = 1000.0
        assert ready.drain_step() is DrainStep.CUT


@given(
    settle=st.floats(0, 60),
    timeout=st.floats(0, 600),
    looks=st.lists(st.tuples(st.floats(0, 700), st.integers(0, 3)), min_size=1),
)
def test_a_drain_never_goes_back(
    settle: float, timeout: float, looks: list[tuple[float, int]]
) -> None:
    drain = Drain(0.0, settle, timeout)
    order = list(DrainStep)
    busy = [order.index(drain.step(now, 1)) for now, _ in sorted(looks)]
    assert busy == sorted(busy)
    assert DrainStep.OVER not in {drain.step(now, 1) for now, _ in looks}
    assert DrainStep.CUT not in {drain.step(now, 0) for now, _ in looks}


def test_requests_in_hand_are_counted_however_they_end() -> None:
    lifecycle = Lifecycle()
    with lifecycle.request():
        assert lifecycle.in_flight == 1
        with pytest.raises(ZeroDivisionError), lifecycle.request():
            raise ZeroDivisionError
        assert lifecycle.in_flight == 1
    assert lifecycle.in_flight == 0
