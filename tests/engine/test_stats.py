"""What is made of the engines' reports: bounds, sums, and no exception ever."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.protocol import DecodingStats
from app.engine.stats import StatsRecorder, StepStats, combine


def step(running: int, usage: float = 0.5) -> StepStats:
    return StepStats(running=running, waiting=0, kv_cache_usage=usage, at=0.0)


@pytest.mark.parametrize(
    ("steps", "handed", "expected"),
    [
        ({}, {0: 0}, DecodingStats(0, 0, 0.0)),
        ({}, {0: 3}, DecodingStats(3, 0, 0.0)),
        ({0: step(2)}, {0: 5}, DecodingStats(3, 2, 0.5)),
        # The last report is from before the others ended.
        ({0: step(4)}, {0: 1}, DecodingStats(0, 1, 0.5)),
        ({0: step(4, 0.9)}, {0: 0}, DecodingStats(0, 0, 0.0)),
        # Two engines: counts are sums, the usage is the mean, an idle one counts as empty.
        ({0: step(2, 0.2), 1: step(1, 0.6)}, {0: 2, 1: 4}, DecodingStats(3, 3, 0.4)),
        ({0: step(2, 0.2), 1: step(1, 0.6)}, {0: 2, 1: 0}, DecodingStats(0, 2, 0.1)),
        ({0: step(2, 0.2)}, {0: 2, 1: 1}, DecodingStats(1, 2, 0.1)),
    ],
)
def test_combine(
    steps: dict[int, StepStats], handed: dict[int, int], expected: DecodingStats
) -> None:
    stats = combine(steps, handed)
    assert (stats.waiting, stats.running) == (expected.waiting, expected.running)
    assert stats.kv_cache_usage == pytest.approx(expected.kv_cache_usage)


def scheduler_stats(**values: Any) -> SimpleNamespace:
    names = ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage")
    return SimpleNamespace(**{**dict.fromkeys(names, 0), **values})


def test_a_report_is_kept_by_engine() -> None:
    recorder = StatsRecorder(clock=lambda: 7.0)
    logger = recorder.stat_logger(None, 1)
    logger.record(scheduler_stats(num_running_reqs=2, num_skipped_waiting_reqs=3), None)
    assert recorder.steps == {1: StepStats(2, 3, 0, 7.0)}
    assert recorder.last_step_at == 7.0


def test_a_step_without_statistics_is_a_step() -> None:
    recorder = StatsRecorder(clock=lambda: 7.0)
    recorder.stat_logger(None, 0).record(None, None)
    assert (recorder.steps, recorder.last_step_at) == ({}, 7.0)


def test_record_cannot_raise(caplog: pytest.LogCaptureFixture) -> None:
    recorder = StatsRecorder()
    logger = recorder.stat_logger(None, 0)
    for _ in range(3):
        logger.record(SimpleNamespace(renamed_in_the_next_version=1), None)
    assert recorder.failures == 3
    assert len(caplog.records) == 1
