"""The same requests through the engine model, and what is read off it."""

import math
from collections import Counter

import pytest

from loadtest.simulator.engine import GAP, EngineSettings
from loadtest.simulator.replay import Asked, capacity, middle, replay
from loadtest.simulator.step_time import Coefficients
from loadtest.simulator.ticks import ticks

SETTINGS = EngineSettings(max_num_seqs=2, max_num_batched_tokens=64, kv_blocks=64, block_size=16)
STEP = Coefficients(step=0.010, token=0.0, decode=0.0, context=0.0, attention=0.0)


def test_one_request_alone() -> None:
    """Accepted after 5 ms, four steps of 10 ms, and 2 ms to the client."""
    given = Coefficients(0.010, 0, 0, 0, 0, accept=0.004, accept_token=1e-4, emit=0.002)
    found = replay([Asked(3.0, 10, 4)], SETTINGS, given).figures
    assert found.ttft == pytest.approx(0.005 + 0.010 + 0.002)
    assert found.e2e == pytest.approx(0.005 + 0.040 + 0.002)
    assert found.itl == pytest.approx(0.010, rel=0.005)
    assert found.tokens_per_s == pytest.approx(4 / 0.047)


def test_a_third_waits_for_a_slot() -> None:
    """Two slots, three answers of four steps: the last begins when the first two have ended."""
    found = replay([Asked(0.0, 10, 4)] * 3, SETTINGS, STEP)
    assert found.figures.ttft == pytest.approx(0.010)
    assert found.figures.tokens_per_s == pytest.approx(12 / 0.080)
    assert (found.most.prefill, found.most.decodes) == (20, 2)


def test_arrivals_that_overtake_each_other_at_the_front_end() -> None:
    """The long prompt takes longer to accept: the two others are served first, one by one."""
    given = Coefficients(0.010, 0, 0, 0, 0, accept_token=1e-3)
    asked = [Asked(0.0, 60, 1), Asked(0.001, 1, 1), Asked(0.002, 1, 1)]
    assert replay(asked, SETTINGS, given).figures.ttft == pytest.approx(0.020)


def test_few_blocks_preempt() -> None:
    """Two answers of 16 blocks each, and 20 blocks."""
    few = EngineSettings(max_num_seqs=2, max_num_batched_tokens=64, kv_blocks=20, block_size=16)
    assert replay([Asked(0.0, 16, 240)] * 2, few, STEP).figures.preemptions == 1


def test_the_middle_of_gaps() -> None:
    def place(seconds: float) -> int:
        return int(math.log(ticks(seconds)) / GAP)

    gaps = Counter({place(0.001): 3, place(0.010): 4, place(0.100): 3})
    assert middle(gaps) == pytest.approx(0.010, rel=0.005)
    assert math.isnan(middle(Counter()))


def test_the_capacity_is_that_of_full_slots() -> None:
    """Two slots, answers of five steps of 10 ms: two requests in 50 ms."""
    assert capacity(SETTINGS, STEP, [(10, 5)] * 40) == pytest.approx(40)
