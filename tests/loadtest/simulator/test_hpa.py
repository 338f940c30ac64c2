"""The autoscaler's arithmetic, as worked examples: each line says how its result comes about."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loadtest.simulator.hpa import (
    Groups,
    Pod,
    desired,
    group,
    milli,
    pods_metric,
    total_metric,
)
from tests.loadtest.simulator.factory import unhurried


@pytest.mark.parametrize(
    ("target", "spec", "values", "unready", "missing", "replicas", "why"),
    [
        (5, 2, [5.5, 5.5], 0, 0, 2, "5.5 / 5 = 1.1: within 0.1"),
        (5, 2, [5.505, 5.505], 0, 0, 3, "5.505 / 5 = 1.101; ceil(1.101 × 2) = 3"),
        (5, 10, [4.5] * 10, 0, 0, 10, "4.5 / 5 = 0.9: within 0.1"),
        (5, 10, [4.49] * 10, 0, 0, 9, "0.898; ceil(0.898 × 10 = 8.98) = 9"),
        (5, 2, [0, 0], 0, 0, 0, "0 / 5; ceil(0) = 0, and the bounds make it the minimum"),
        (5, 2, [30, 0], 0, 0, 6, "mean 15; 15 / 5 × 2 = 6: the same as ceil(30 / 5)"),
        (5, 4, [30], 0, 0, 6, "one of four pods is known of: 6 × 1, whatever spec.replicas is"),
        (3, 2, [4.0005, 4.0005], 0, 0, 3, "cut to 4000 m; 4 / 3 × 2 = 2.67; 3"),
        (1, 2, [1.1, 1.1009], 0, 0, 2, "(1100 + 1100) // 2 = 1100 m: 1.1 is within"),
        (5, 4, [20, 20], 2, 0, 8, "4 > 1, 2 pending as 0: mean 10, 2 × 4 = 8, not 4 × 2 = 8"),
        (5, 4, [8, 8], 2, 0, 4, "1.6 > 1, 2 pending as 0: mean 4, 0.8: turned round, so 4"),
        (5, 3, [8, 8], 1, 0, 3, "1.6 > 1, 1 pending as 0: 16 // 3 = 5.333: 1.067 is within"),
        (5, 4, [2, 2], 2, 0, 1, "0.4 < 1: pending pods do not count; ceil(0.4 × 2) = 1"),
        (5, 3, [2, 2], 0, 1, 2, "0.4 < 1, 1 missing as 5: 9 / 3 = 3; ceil(0.6 × 3 = 1.8) = 2"),
        (5, 2, [4.4], 0, 1, 2, "0.88 < 1, 1 missing as 5: 9.4 / 2 = 4.7: 0.94 is within"),
        (5, 3, [30, 30], 0, 1, 12, "6 > 1, 1 missing as 0: 60 / 3 = 20; 4 × 3 = 12"),
        (5, 2, [6], 0, 1, 2, "1.2 > 1, 1 missing as 0: 3, 0.6: turned round, so 2"),
        (
            5,
            3,
            [5, 5],
            0,
            1,
            2,
            "1 is not < 1, 1 missing as 0: 3.333; ceil(0.6666 × 3 = 1.9998) = 2",
        ),
        (5, 4, [20], 1, 2, 4, "4 > 1, 3 as 0: 20 / 4 = 5: 1 is within"),
        (5, 8, [30, 30], 0, 1, 12, "12 is above 8: same direction"),
        (5, 16, [30, 30], 0, 1, 16, "ratio 4 asks for more, 12 is less than 16: so 16"),
        (
            5,
            2,
            [3, 3, 3],
            0,
            1,
            2,
            "0.6 < 1, 1 missing as 5: 0.7 × 4 = 2.8; 3 is more than 2: so 2",
        ),
        (5, 3, [], 1, 2, None, "nothing is known"),
    ],
)
def test_a_metric_of_pods(
    target: float,
    spec: int,
    values: list[float],
    unready: int,
    missing: int,
    replicas: int | None,
    why: str,
) -> None:
    groups = Groups([milli(value) for value in values], unready, missing)
    assert pods_metric(milli(target), spec, groups) == replicas, why


@pytest.mark.parametrize(
    ("target", "status", "total", "replicas", "why"),
    [
        (5, 3, 15, 3, "15 / (5 × 3) = 1"),
        (5, 3, 16.5, 3, "16.5 / 15 = 1.1: within"),
        (5, 3, 16.6, 4, "1.107; ceil(16.6 / 5 = 3.32) = 4"),
        (5, 3, 13, 3, "0.867; ceil(13 / 5 = 2.6) = 3"),
        (5, 3, 0, 0, "ceil(0)"),
        (5, 1, 100, 20, "ceil(100 / 5): what is starting is not looked at"),
        (5, 0, 1, 1, "from nothing: ceil(1 / 5) = 1"),
        (5, 3, None, None, "it cannot be read"),
    ],
)
def test_a_metric_of_the_whole(
    target: float, status: int, total: float | None, replicas: int | None, why: str
) -> None:
    found = None if total is None else milli(total)
    assert total_metric(milli(target), status, found) == replicas, why


@pytest.mark.parametrize(
    ("pods", "groups"),
    [
        ([Pod("a"), Pod("b")], Groups([1, 2], 0, 0)),
        ([Pod("a"), Pod("c")], Groups([1], 0, 1)),
        ([Pod("a"), Pod("b", "Pending")], Groups([1], 1, 0)),
        ([Pod("a", deleted=True), Pod("b")], Groups([2], 0, 0)),
        ([Pod("a", "Failed"), Pod("c", "Pending", deleted=True)], Groups([], 0, 0)),
    ],
)
def test_pods_are_sorted_by_what_is_known(pods: list[Pod], groups: Groups) -> None:
    assert group(pods, {"a": 1, "b": 2, "gone": 9}) == groups


@pytest.mark.parametrize(
    ("spec", "proposals", "replicas"),
    [
        (3, [2, 5], 5),
        (3, [0, 0], 0),
        (3, [None, 5], 5),
        (3, [None, 3], 3),
        (3, [None, 2], None),
        (3, [None, None], None),
    ],
)
def test_the_largest_wins_and_a_scale_down_needs_all(
    spec: int, proposals: list[int | None], replicas: int | None
) -> None:
    assert desired(spec, proposals) == replicas


@pytest.mark.parametrize(("value", "whole"), [(0.0019, 1), (2, 2000), (4.9999, 4999)])
def test_what_is_below_a_thousandth_is_cut_off(value: float, whole: int) -> None:
    assert milli(value) == whole


@unhurried
@given(
    st.integers(1000, 50_000),
    st.integers(1, 20),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=20),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_what_is_not_known_never_scales_further(
    target: int, spec: int, values: list[int], unready: int, missing: int
) -> None:
    known = pods_metric(target, spec, Groups(values, 0, 0))
    guessed = pods_metric(target, spec, Groups(values, unready, missing))
    assert known is not None
    assert guessed is not None
    mean = sum(values) // len(values)
    assume(mean != target)  # then missing pods count as idle, whatever that leads to
    # Each mean is cut to whole milli-units, so one may be a pod apart.
    if mean > target:
        assert guessed <= max(known, spec) + 1
    else:
        assert guessed >= min(known, spec) - 1
