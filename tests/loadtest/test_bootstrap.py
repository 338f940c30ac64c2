"""Intervals: on data whose truth is known, and no narrower than correlated data allow."""

import math

import numpy as np
import pytest

from loadtest import bootstrap
from loadtest.bootstrap import Floats, interval, mean, median, paired_interval, ratio_interval


def normal(seed: int, centre: float, count: int = 500) -> Floats:
    return np.random.default_rng(seed).normal(centre, 1.0, count)


def width(bounds: tuple[float, float]) -> float:
    return bounds[1] - bounds[0]


def test_the_mean_of_independent_values_has_its_textbook_interval() -> None:
    values = normal(1, 10.0, 2000)
    low, high = interval(values, mean)
    assert low < values.mean() < high
    # ± 1.96 / √2000; twenty blocks tell a spread to about a sixth.
    assert width((low, high)) == pytest.approx(2 * 1.96 / 2000**0.5, rel=0.5)


def test_95_of_100_intervals_hold_the_truth() -> None:
    hits = sum(
        low <= 10.0 <= high
        for low, high in (interval(normal(seed, 10.0, 400), mean, draws=400) for seed in range(200))
    )
    assert 170 <= hits < 200


def test_neighbours_that_are_alike_make_it_wider() -> None:
    alone = normal(2, 10.0, 200)
    alike = np.repeat(alone, 10)
    shuffled = np.random.default_rng(3).permutation(alike)
    # 200 values say no more when each is said ten times: √10 wider than of 2000.
    assert width(interval(alike, mean)) > 2 * width(interval(shuffled, mean))


def test_every_value_is_drawn_as_often() -> None:
    indices = bootstrap._blocks(40, 7, 20_000, np.random.default_rng(4))
    assert indices.shape == (20_000, 40)
    counts = np.bincount(indices.ravel(), minlength=40)
    assert counts / counts.mean() == pytest.approx(1.0, abs=0.05)
    assert set(np.unique(np.diff(indices[:, :7]) % 40)) == {1}


def test_a_ratio_is_found_and_a_wrong_one_is_not() -> None:
    low, high = ratio_interval(normal(5, 26.0), normal(6, 20.0), median)
    assert low < 1.3 < high
    assert not low < 1.2 < high
    assert not low < 1.4 < high


def test_a_ratio_does_not_take_the_series_for_paired() -> None:
    values = normal(7, 10.0)
    low, high = ratio_interval(values, values, mean)
    assert low < 1.0 < high


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0], []), ([0.0] * 9, [0.0] * 9)])
def test_no_ratio_is_not_made_up(a: list[float], b: list[float]) -> None:
    assert all(math.isnan(bound) for bound in ratio_interval(a, b, mean))


def test_a_ratio_to_what_may_be_nothing_has_no_upper_end() -> None:
    low, high = ratio_interval([1.0] * 40, [0.0] * 38 + [1.0] * 2, mean)
    assert low > 1.0
    assert high == math.inf


def test_pairs_cancel_what_they_share() -> None:
    shared = np.exp(normal(8, 0.0, 12))  # rounds differ more than the servers do
    noise = 1 + 0.01 * normal(9, 0.0, 12)
    pairs = [(1.1 * s * n, s) for s, n in zip(shared, noise, strict=True)]
    low, high = paired_interval(pairs)
    assert low < 1.1 < high
    assert low > 1.05
    assert width(paired_interval(pairs, mean)) < 0.05
    above, below = zip(*pairs, strict=True)
    assert width(ratio_interval(above, below, median)) > 0.5


def test_one_value_is_all_that_is_known() -> None:
    assert interval([3.0], median) == (3.0, 3.0)
    assert paired_interval([(3.0, 2.0)]) == (1.5, 1.5)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = normal(10, 5.0)
    assert interval(values, mean) == interval(values, mean)
    assert interval(values, mean) != interval(values, mean, seed=1)
    assert width(interval(values, mean, level=0.5)) < width(interval(values, mean))


def test_many_values_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_AT_ONCE", 700)
    low, high = interval(normal(11, 5.0, 100), mean, draws=500)
    assert low < 5.0 < high
