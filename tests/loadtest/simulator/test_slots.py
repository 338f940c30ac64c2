"""Continuous and static batching on slots: what is injected when, and what comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.slots import (
    EOS,
    BatchingScheduler,
    ContinuousBatchingScheduler,
    Request,
    Result,
    Script,
    StaticBatchingScheduler,
    drain,
)
from tests.loadtest.simulator.factory import unhurried

BOTH = [ContinuousBatchingScheduler, StaticBatchingScheduler]
LENGTHS = {"A": 2, "B": 2, "C": 2, "D": 6, "E": 3, "F": 1}


def scheduler_of(kind: type[BatchingScheduler], slots: int = 4) -> BatchingScheduler:
    scheduler = kind(slots, Script(LENGTHS))
    for name in LENGTHS:
        scheduler.submit(Request(name, 100))
    return scheduler


def names(scheduler: BatchingScheduler) -> list[str]:
    return [one.request.name if one else "-" for one in scheduler.slots]


def test_a_freed_slot_is_refilled_before_the_next_pass() -> None:
    scheduler = scheduler_of(ContinuousBatchingScheduler)
    assert scheduler.step() == []
    assert scheduler.step() == []
    assert names(scheduler) == ["A", "B", "C", "D"]
    assert [result.request.name for result in scheduler.step()] == ["A", "B", "C"]
    assert names(scheduler) == ["E", "F", "-", "D"]
    assert [result.request.name for result in scheduler.step()] == ["F"]


def test_a_static_batch_admits_nobody_until_its_longest_has_ended() -> None:
    scheduler = scheduler_of(StaticBatchingScheduler)
    for _ in range(2):
        assert scheduler.step() == []
    assert [result.request.name for result in scheduler.step()] == ["A", "B", "C"]
    for _ in range(3):
        assert names(scheduler) == ["-", "-", "-", "D"]
        assert scheduler.step() == []
    assert [result.request.name for result in scheduler.step()] == ["D"]
    assert names(scheduler) == ["E", "F", "-", "-"]


@pytest.mark.parametrize(
    ("kind", "steps"), [(ContinuousBatchingScheduler, 6), (StaticBatchingScheduler, 9)]
)
def test_what_the_example_takes(kind: type[BatchingScheduler], steps: int) -> None:
    scheduler = scheduler_of(kind)
    results = drain(scheduler)
    # Continuous: D's 6, into which 2+3 and 2+1 fit. Static: 6 of D, then 3 of E.
    assert scheduler.steps == steps
    assert {result.request.name: len(result.tokens) for result in results} == LENGTHS


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("max_tokens", "tokens", "finish"),
    [(100, (0, 0, EOS), "stop"), (3, (0, 0, EOS), "stop"), (2, (0, 0), "length")],
)
def test_a_sequence_ends_by_itself_or_at_its_limit(
    kind: type[BatchingScheduler], max_tokens: int, tokens: tuple[int, ...], finish: str
) -> None:
    scheduler = kind(1, Script({"A": 3}))
    request = Request("A", max_tokens)
    scheduler.submit(request)
    assert drain(scheduler) == [Result(request, 0, 0, len(tokens), tokens, finish)]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BOTH)
def test_what_makes_no_sense_is_refused(kind: type[BatchingScheduler]) -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        kind(0, Script({}))
    with pytest.raises(ValueError, match="at least one token"):
        kind(1, Script({})).submit(Request("A", 0))


@unhurried
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 5))
def test_nothing_is_lost_and_continuous_never_takes_longer(lengths: list[int], slots: int) -> None:
    steps = []
    for kind in BOTH:
        script = Script({str(n): length for n, length in enumerate(lengths)})
        scheduler = kind(slots, script)
        for n in range(len(lengths)):
            scheduler.submit(Request(str(n), 9))
        results = drain(scheduler)
        by_name = {int(result.request.name): len(result.tokens) for result in results}
        assert [by_name[n] for n in range(len(lengths))] == lengths
        taken = [(r.slot, step) for r in results for step in range(r.since, r.until)]
        assert len(taken) == len(set(taken)) == sum(lengths)
        steps.append(scheduler.steps)
    assert steps[0] <= steps[1]
