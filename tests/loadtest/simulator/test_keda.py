"""What KEDA does by itself: from 0 to 1 and back, and when a source fails."""

import pytest

from loadtest.simulator.hpa import milli, total_metric
from loadtest.simulator.keda import Activation, Fallback, read


@pytest.mark.parametrize(
    ("series", "ignore_null", "value"),
    [
        ([7.0], True, 7.0),
        ([], True, 0.0),
        ([], False, None),
        ([1.0, 2.0], True, None),
        (None, True, None),
    ],
)
def test_a_query_is_one_number(
    series: list[float] | None, ignore_null: bool, value: float | None
) -> None:
    assert read(series, ignore_null=ignore_null) == value


@pytest.mark.parametrize(
    ("behavior", "current", "replicas"),
    [
        ("static", 5, 2),
        ("currentReplicas", 5, 5),
        ("currentReplicasIfHigher", 5, 5),
        ("currentReplicasIfHigher", 1, 2),
        ("currentReplicasIfLower", 5, 2),
        ("currentReplicasIfLower", 1, 1),
    ],
)
def test_a_fallback_is_a_metric_that_asks_for_its_replicas(
    behavior: str, current: int, replicas: int
) -> None:
    fallback = Fallback(3, 2, behavior)  # type: ignore[arg-type]
    assert fallback.total(milli(4), current, failures=3) is None
    total = fallback.total(milli(4), current, failures=4)
    assert total_metric(milli(4), current, total) == replicas


@pytest.mark.parametrize(
    ("current", "least", "values", "idle_s", "replicas"),
    [
        (0, 0, [0.0, 3.0], 999, 1),
        (0, 0, [0.0, 2.0], 999, 0),
        (0, 0, [None, None], 999, 0),
        (0, 2, [0.0, 0.0], 999, 2),
        (4, 0, [0.0, 0.0], 299, 4),
        (4, 0, [0.0, 0.0], 300, 0),
        (4, 1, [0.0, 0.0], 999, 4),
        (4, 0, [1.0, 0.0], 999, 4),
    ],
)
def test_from_nothing_and_back(
    current: int, least: int, values: list[float | None], idle_s: float, replicas: int
) -> None:
    keda = Activation(thresholds=(0.0, 2.0))
    found = keda.replicas(current, least, active=keda.active(values), idle_s=idle_s)
    assert found == replicas
