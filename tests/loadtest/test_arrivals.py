"""Schedules: the rate and the burstiness that were asked for, drawn ahead, the same for a seed."""

from collections.abc import Callable

import numpy as np
import pytest

from loadtest import arrivals
from loadtest.arrivals import Times
from loadtest.errors import UsageError

Dice = np.random.Generator
RATE, DURATION_S = 50.0, 400.0


def dice(seed: int = 1) -> Dice:
    return np.random.default_rng(seed)


def cv(times: Times) -> float:
    gaps = np.diff(times)
    return float(gaps.std() / gaps.mean())


@pytest.mark.parametrize(
    ("draw", "expected_cv"),
    [
        (lambda d: arrivals.constant(RATE, DURATION_S), 0.0),
        (lambda d: arrivals.poisson(RATE, DURATION_S, d), 1.0),
        (lambda d: arrivals.given(int(RATE * DURATION_S), DURATION_S, d), 1.0),
        (lambda d: arrivals.gamma(RATE, 0.0, DURATION_S, d), 0.0),
        (lambda d: arrivals.gamma(RATE, 0.5, DURATION_S, d), 0.5),
        (lambda d: arrivals.gamma(RATE, 3.0, DURATION_S, d), 3.0),
        # https://en.wikipedia.org/wiki/Weibull_distribution: shape 1 is exponential
        (lambda d: arrivals.weibull(RATE, 1.0, DURATION_S, d), 1.0),
        (lambda d: arrivals.weibull(RATE, 0.5, DURATION_S, d), 5**0.5),
    ],
)
def test_rate_and_burstiness(draw: Callable[[Dice], Times], expected_cv: float) -> None:
    times = draw(dice())
    # Of 20,000 gaps, the mean is off by CV/141 or so: the bound is ten times that.
    tolerance = 0.001 + 10 * expected_cv / (RATE * DURATION_S) ** 0.5
    assert len(times) == pytest.approx(RATE * DURATION_S, rel=tolerance)
    assert cv(times) == pytest.approx(expected_cv, rel=0.2, abs=1e-6)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < DURATION_S


def test_the_same_seed_gives_the_same_schedule() -> None:
    first, again, other = (arrivals.poisson(5, 100, dice(seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert len(first) != len(other) or (first != other).any()


def test_bursts_are_silent_in_between() -> None:
    times = arrivals.bursts(100, on_s=2, off_s=8, duration_s=95, dice=dice())
    assert ((times % 10) < 2).all()
    assert len(times) == pytest.approx(100 * 2 * 10, rel=0.2)
    assert (np.diff(times) >= 0).all()


def test_steps_have_their_rates() -> None:
    times = arrivals.steps([10, 0, 40], step_s=100, dice=dice())
    counts, _ = np.histogram(times, bins=[0, 100, 200, 300])
    assert counts[1] == 0
    assert counts[0] == pytest.approx(1000, rel=0.3)
    assert counts[2] == pytest.approx(4000, rel=0.2)


def test_a_ramp_grows() -> None:
    times = arrivals.ramp(0, 100, duration_s=200, dice=dice())
    counts, _ = np.histogram(times, bins=[0, 100, 200])
    assert counts[0] == pytest.approx(2500, rel=0.2)
    assert counts[1] == pytest.approx(7500, rel=0.2)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_is_one_line(rate: float) -> None:
    with pytest.raises(UsageError, match="rate"):
        arrivals.poisson(rate, 10, dice())
