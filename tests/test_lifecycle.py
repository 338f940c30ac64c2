"""The phases: what may follow what, and what a request is told in each."""

import itertools

import pytest

from app.errors import EngineDead, Starting
from app.lifecycle import Lifecycle, Phase, Stage, can_become

ALLOWED = {
    (Phase.STARTING, Phase.READY),
    (Phase.STARTING, Phase.STOPPED),
    (Phase.STARTING, Phase.FAILED),
    (Phase.READY, Phase.STOPPED),
    (Phase.READY, Phase.FAILED),
}


@pytest.mark.parametrize(("now", "new"), list(itertools.product(Phase, Phase)))
def test_the_transition_table(now: Phase, new: Phase) -> None:
    assert can_become(now, new) is ((now, new) in ALLOWED)


def test_an_end_is_final() -> None:
    lifecycle = Lifecycle()
    lifecycle.become(Phase.FAILED)
    lifecycle.become(Phase.READY)
    lifecycle.become(Phase.STOPPED)
    assert lifecycle.phase is Phase.FAILED
    assert lifecycle.failed


@pytest.mark.parametrize("stage", list(Stage))
def test_while_starting_the_stage_is_told(stage: Stage) -> None:
    lifecycle = Lifecycle()
    lifecycle.stage = stage
    refusal = lifecycle.refusal()
    assert isinstance(refusal, Starting)
    assert stage.value in refusal.message
    assert refusal.code == "starting"


def test_ready_refuses_nothing_and_failed_everything() -> None:
    lifecycle = Lifecycle()
    lifecycle.become(Phase.READY)
    assert lifecycle.refusal() is None
    lifecycle.become(Phase.FAILED)
    assert isinstance(lifecycle.refusal(), EngineDead)
