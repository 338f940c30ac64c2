"""The poller: publishes, warns once per crossing, survives every failure."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from app.telemetry.metrics import Metrics, Snapshot
from app.telemetry.poller import Poller, Saturation


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("tiny", "0", "0", engine=CollectorRegistry())


def value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "tiny"})


def poller(metrics: Metrics, read: Callable[[], Snapshot], threshold: int = 100) -> Poller:
    return Poller(read, metrics, interval_s=0.001, saturation_threshold=threshold)


@pytest.mark.parametrize(
    ("pending", "crossings"),
    [
        ([0, 100], [False, False]),
        ([101, 102, 500], [True, False, False]),
        ([101, 100, 101], [True, False, True]),
        ([0, 101, 0, 0, 101, 101], [False, True, False, False, True, False]),
    ],
)
def test_a_crossing_is_told_once(pending: list[int], crossings: list[bool]) -> None:
    saturation = Saturation(100)
    assert [saturation.crossed(count) for count in pending] == crossings


def test_a_poll_publishes_the_snapshot(metrics: Metrics) -> None:
    snapshot = Snapshot(pending=3, running=4, kv_cache_usage=0.25, pending_tokens=77)
    poller(metrics, lambda: snapshot).poll()
    assert value(metrics, "vllm_pending_requests") == 3
    assert value(metrics, "vllm_running_requests") == 4
    assert value(metrics, "vllm_kv_cache_usage_percent") == 25
    assert value(metrics, "vllm_kv_cache_usage_ratio") == 0.25
    assert value(metrics, "vllm_pending_tokens") == 77
    assert value(metrics, "tidegate_demand_sequences") == 7


def test_one_warning_per_crossing(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    pending = iter([5, 6, 7, 1, 5, 5])
    watched = poller(metrics, lambda: Snapshot(pending=next(pending)), threshold=4)
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            watched.poll()
    assert len(caplog.records) == 2


async def test_a_failure_is_counted_and_never_ends_the_loop(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def read() -> Snapshot:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise ValueError("the engine is not itself")
        return Snapshot(running=1)

    task = asyncio.create_task(poller(metrics, read).run())
    while calls < 5:
        assert not task.done()
        await asyncio.sleep(0.001)
    task.cancel()
    assert value(metrics, "tidegate_poll_errors_total") == 3
    assert value(metrics, "vllm_running_requests") == 1
    assert sum("cannot be read" in record.message for record in caplog.records) == 3


def test_a_failed_poll_does_not_look_like_a_fresh_one(metrics: Metrics) -> None:
    def fail() -> Snapshot:
        raise ValueError

    poller(metrics, fail).poll()
    assert value(metrics, "tidegate_last_poll_timestamp_seconds") is None
