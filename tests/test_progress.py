"""What is a stall, and what only looks like one. A look is at most 1 s long."""

from app.progress import Progress
from app.workload import InHand

BUSY, IDLE = 3, 0


def looks(*hands: InHand, every: float = 1.0) -> list[float]:
    """How long the engine seems to hang after each look."""
    progress = Progress()
    seen = []
    for number, hand in enumerate(hands):
        progress.observe(number * every, {0: hand})
        seen.append(progress.stalled_s)
    return seen


def test_an_idle_engine_does_not_hang() -> None:
    assert looks(*[InHand(IDLE, 5.0)] * 4) == [0, 0, 0, 0]
    assert looks(*[InHand(IDLE)] * 4) == [0, 0, 0, 0]


def test_an_engine_that_steps_does_not_hang() -> None:
    assert looks(*[InHand(BUSY, float(step)) for step in range(4)]) == [0, 0, 0, 0]


def test_work_without_a_step_is_a_stall_that_a_step_ends() -> None:
    hands = [InHand(IDLE, 5.0), *[InHand(BUSY, 5.0)] * 3, InHand(BUSY, 9.0), InHand(BUSY, 9.0)]
    assert looks(*hands) == [0, 1, 2, 3, 0, 1]


def test_an_engine_that_has_never_stepped_can_hang_too() -> None:
    assert looks(*[InHand(BUSY)] * 3) == [0, 1, 2]


def test_time_without_work_is_not_part_of_a_stall() -> None:
    assert looks(*[InHand(IDLE, 5.0)] * 100, InHand(BUSY, 5.0))[-1] == 1


def test_taking_the_work_back_is_no_sign_of_life() -> None:
    progress = Progress()
    for now in (0.0, 1.0, 2.0):
        progress.observe(now, {0: InHand(BUSY, 5.0)})
    assert not progress.unsure
    progress.observe(3.0, {0: InHand(IDLE, 5.0)})
    assert progress.unsure
    assert progress.stalled_s == 3
    progress.answered()
    assert not progress.unsure
    progress.observe(4.0, {0: InHand(IDLE, 5.0)})
    assert progress.stalled_s == 0


def test_of_several_engines_the_slowest_counts() -> None:
    progress = Progress()
    for now in range(4):
        progress.observe(now, {0: InHand(BUSY, float(now)), 1: InHand(BUSY, 5.0)})
    assert progress.stalled_s == 3
    assert progress.stuck_s == 0
    progress.observe(4, {0: InHand(IDLE, 3.0), 1: InHand(BUSY, 5.0)})
    assert progress.stuck_s == 4


def test_a_process_that_was_stopped_itself_has_seen_nothing_meanwhile() -> None:
    assert looks(*[InHand(BUSY, 5.0)] * 3, every=3600.0) == [0, 1, 2]
