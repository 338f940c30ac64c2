"""Lengths, pace, flows and forecasts, each by itself."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.admission.flows import OUTPUT_WEIGHT, PROMPT_WEIGHT, Flows
from app.admission.forecast import FORGET_S, Margin, kv_peak, slot_at
from app.admission.lengths import ASSUMED, Lengths
from app.admission.pace import Pace
from app.workload import Step


def lengths(*ended: tuple[int, bool]) -> Lengths:
    found = Lengths()
    for tokens, at_limit in ended:
        found.ended(tokens, at_limit)
    return found


def test_before_anything_ended_a_sequence_runs_to_its_limit() -> None:
    assert Lengths().remaining(10, 100) == 90
    assert Lengths().remaining(0, None) == ASSUMED


def test_sequences_that_run_to_their_limit_have_the_rest_of_it_to_come() -> None:
    found = lengths(*[(n, True) for n in (10, 20, 400)])
    assert found.remaining(0, 64) == 64
    assert found.remaining(60, 64) == 4
    assert found.remaining(70, 64) == 0


def test_sequences_that_end_by_themselves_go_on_as_those_that_were_longer_did() -> None:
    found = lengths(*[(n, False) for n in (10, 20, 60)])
    assert found.remaining(0, 1000) == 30
    assert found.remaining(15, 1000) == 25  # (20 + 60) / 2 - 15
    assert found.remaining(59, None) == 1
    # Longer than any before: as much again.
    assert found.remaining(80, 1000) == 80
    assert found.remaining(80, 100) == 20


def test_a_mixture_is_weighted() -> None:
    found = lengths((100, True), (20, False), (20, False), (20, False))
    assert found.remaining(0, 100) == pytest.approx(0.25 * 100 + 0.75 * 40)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=40),
    st.integers(0, 600),
    st.one_of(st.none(), st.integers(0, 600)),
)
@example(ended=[(0, False)] * 4 + [(0, True)], produced=0, limit=101)
def test_what_is_to_come_is_never_negative_nor_beyond_the_limit(
    ended: list[tuple[int, bool]], produced: int, limit: int | None
) -> None:
    found = lengths(*ended).remaining(produced, limit)
    assert found >= 0
    assert limit is None or found <= max(0, limit - produced)


def paced(*steps: tuple[float, int, int]) -> Pace:
    pace = Pace()
    for at, running, generated in steps:
        pace.step(Step(0, at, running, generated))
    return pace


def test_a_token_takes_a_step_however_many_sequences_there_are() -> None:
    assert paced(*[(0.02 * n, 16, 16) for n in range(100)]).token_s == pytest.approx(0.02)


def test_steps_for_prompts_count_as_time() -> None:
    steps = [(0.02 * n, 4, 4 if n % 2 else 0) for n in range(100)]
    assert paced(*steps).token_s == pytest.approx(0.04, rel=0.1)


def test_several_tokens_a_step_are_counted() -> None:
    # Drafted tokens that were accepted: three for each of two sequences.
    assert paced(*[(0.03 * n, 2, 6) for n in range(100)]).token_s == pytest.approx(0.01)


def test_long_steps_count_once() -> None:
    times, now = [], 0.0
    for n in range(2000):
        now += 0.3 if n % 10 == 0 else 0.02
        times.append((now, 8, 8))
    assert paced(*times).token_s == pytest.approx(0.048, rel=0.15)


def test_idle_time_is_no_pace() -> None:
    steps = [(0.02 * n, 1, 1) for n in range(50)]
    idle = [(1.0, 0, 1), (100.0, 1, 0)]
    assert paced(*steps, *idle, *[(100.0 + t, r, g) for t, r, g in steps[1:]]).token_s == (
        pytest.approx(0.02)
    )


def test_the_pace_follows_within_a_few_seconds() -> None:
    fast = [(0.01 * n, 8, 8) for n in range(500)]
    slow = [(5.0 + 0.05 * n, 8, 8) for n in range(100)]
    assert paced(*fast, *slow).token_s == pytest.approx(0.05, rel=0.05)


def test_a_long_prompt_takes_longer_to_start() -> None:
    pace = paced((0.0, 1, 1), (0.01, 1, 1))
    for _ in range(100):
        pace.prefill(1000, 0.5)
        pace.prefill(10, 0.02)
    assert pace.start_s(10_000) == pytest.approx(0.01 + 5.0, rel=0.01)
    assert pace.start_s(1) < 0.5


@pytest.mark.parametrize(
    ("position", "free", "expected"),
    [
        (0, 1, 0.0),
        (2, 2, 1.0),
        (0, 0, 1.0),
        (1, 0, 2.0),
        (2, 0, 4.0),
        (3, 0, 11.0),  # the second one in the first slot that frees up
        (7, 0, 22.0),
        (0, -1, 2.0),  # one waits inside the engine already
    ],
)
def test_when_a_slot_is_free(position: int, free: int, expected: float) -> None:
    assert slot_at(position, free, [1.0, 2.0, 4.0], service_s=10.0) == expected


def test_an_empty_engine_has_a_slot_at_once() -> None:
    assert slot_at(5, 0, [], 10.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_the_peak_of_the_cache_is_that_of_a_simulation(sequences: list[tuple[int, int]]) -> None:
    """Each makes a token a step and gives all back when it has ended."""
    peak = 0
    for step in range(51):
        peak = max(peak, sum(held + step for held, to_come in sequences if to_come >= step))
    assert kv_peak(sequences) == peak


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12), st.integers(1, 20))
def test_the_peak_is_enough_for_whole_blocks(sequences: list[tuple[int, int]], block: int) -> None:
    peak = 0
    for step in range(51):
        blocks = (-(-(held + step) // block) for held, to_come in sequences if to_come >= step)
        peak = max(peak, block * sum(blocks))
    assert peak <= kv_peak(sequences, block) <= kv_peak(sequences) + len(sequences) * (block - 1)


def test_a_margin_covers_nearly_all_and_forgets() -> None:
    margin = Margin()
    assert margin.seconds(0.0) == 0.0
    for n in range(100):
        margin.note(0.1 * n, n / 100)
    assert margin.seconds(10.0) == pytest.approx(0.98, abs=0.01)
    assert margin.seconds(10.0 + FORGET_S) == 0.0


def test_predictions_that_were_too_high_give_no_margin() -> None:
    margin = Margin()
    for _ in range(10):
        margin.note(0.0, -1.0)
    assert margin.seconds(0.0) == 0.0


def test_tokens_are_weighted() -> None:
    flow = Flows().of("a")
    flow.prompt(10)
    flow.output(3)
    assert flow.served == 10 * PROMPT_WEIGHT + 3 * OUTPUT_WEIGHT


def test_who_was_idle_starts_at_the_active_minimum() -> None:
    flows = Flows()
    first = flows.of("a")
    first.live = 1
    first.output(50)
    second = flows.of("b")
    assert second.served == first.served
    second.live = 1
    second.output(500)
    assert flows.of("c").served == first.served
    # Whoever had more than that keeps it.
    second.live = 0
    assert flows.of("b").served == second.served > first.served


def test_after_everybody_was_idle_it_goes_on_from_the_last() -> None:
    flows = Flows()
    first = flows.of("a")
    first.live = 1
    first.output(50)
    first.live = 0
    flows.left(first)
    assert flows.of("new").served == first.served
