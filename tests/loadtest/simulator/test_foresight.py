"""What the model of the front door learns and expects is what the service would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admission import forecast
from app.admission import lengths as admission_lengths
from app.admission import pace as admission_pace
from app.workload import Step
from loadtest.simulator import foresight
from tests.loadtest.simulator.factory import unhurried

seconds = st.floats(0.001, 5.0)
ends = st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=300)


@unhurried
@given(ends, st.integers(0, 400), st.one_of(st.none(), st.integers(0, 500)))
def test_lengths(ended: list[tuple[int, bool]], produced: int, limit: int | None) -> None:
    ours, theirs = foresight.Lengths(), admission_lengths.Lengths()
    for tokens, at_limit in ended:
        ours.ended(tokens, at_limit=at_limit)
        theirs.ended(tokens, at_limit)
    assert ours.remaining(produced, limit) == theirs.remaining(produced, limit)


@unhurried
@given(
    st.lists(st.tuples(seconds, st.integers(1, 50), st.integers(1, 99)), max_size=30),
    st.lists(st.tuples(st.integers(1, 1000), seconds), max_size=40),
    st.integers(1, 2000),
)
def test_pace(
    steps: list[tuple[float, int, int]], prefills: list[tuple[int, float]], tokens: int
) -> None:
    ours, theirs = foresight.Pace(), admission_pace.Pace()
    at, before = 0.0, 7
    theirs.step(Step(0, at, before, 0))
    for elapsed, running, generated in steps:
        at += elapsed
        theirs.step(Step(0, at, running, generated))
        ours.passed(elapsed, generated / max(before, running))
        before = running
    for prompt, elapsed in prefills:
        ours.prefill(prompt, elapsed)
        theirs.prefill(prompt, elapsed)
    assert ours.token_s == pytest.approx(theirs.token_s)
    assert ours.start_s(tokens) == pytest.approx(theirs.start_s(tokens))


@unhurried
@given(st.lists(st.tuples(seconds, st.floats(-5, 5)), max_size=300), st.floats(0, 40))
def test_margin(errors: list[tuple[float, float]], later: float) -> None:
    ours, theirs, now = foresight.Margin(), forecast.Margin(), 0.0
    for elapsed, error in errors:
        now += elapsed
        ours.note(now, error)
        theirs.note(now, error)
    assert ours.seconds(now + later) == theirs.seconds(now + later)


@unhurried
@given(st.integers(0, 50), st.integers(-9, 9), st.lists(seconds, max_size=9), seconds)
def test_when_a_slot_is_free(
    position: int, free: int, remaining: list[float], service: float
) -> None:
    expected = forecast.slot_at(position, free, sorted(remaining), service)
    assert foresight.slot_at(position, free, sorted(remaining), service) == expected


@unhurried
@given(st.lists(st.tuples(st.floats(0, 999), st.floats(0, 999)), max_size=30), st.integers(1, 32))
def test_the_peak_of_the_cache(held: list[tuple[float, float]], block: int) -> None:
    assert foresight.kv_peak(held, block) == forecast.kv_peak(held, block)


@unhurried
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 9_999)), max_size=300),
    st.dictionaries(st.integers(-2, 2), seconds),
    st.integers(-2, 2),
    seconds,
)
def test_for_how_long_a_prompt_room_is_left(
    prompts: list[tuple[int, int]], refused: dict[int, float], priority: int, now: float
) -> None:
    ours, theirs = foresight.Rooms(), forecast.Rooms()
    for each in (ours, theirs):
        for of, tokens in prompts:
            each.note(of, tokens)
        for of, at in refused.items():
            each.refused(of, at)
    assert ours.long(priority, now) == theirs.long(priority, now)
