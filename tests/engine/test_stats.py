"""What is made of the engines' reports: bounds, sums, and no exception ever."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Histogram
from vllm.v1.metrics.loggers import PrometheusStatLogger

from app.engine.stats import SeriesLogger, StatsRecorder, StepStats, combine, observe_all
from app.workload import Step


def step(running: int, usage: float = 0.5) -> StepStats:
    return StepStats(running=running, waiting=1, deferred=0, kv_cache_usage=usage, preempted=False)


@pytest.mark.parametrize(
    ("steps", "inside", "unstarted", "running", "usage"),
    [
        ({}, {0: 0}, 0, 0, 0.0),
        ({}, {0: 3}, 3, 0, 0.0),
        ({0: step(2)}, {0: 5}, 3, 2, 0.5),
        # The last report is from before the others ended.
        ({0: step(4)}, {0: 1}, 0, 1, 0.5),
        ({0: step(4, 0.9)}, {0: 0}, 0, 0, 0.0),
        # Two engines: counts are sums, the usage is the mean, an idle one counts as empty.
        ({0: step(2, 0.2), 1: step(1, 0.6)}, {0: 2, 1: 4}, 3, 3, 0.4),
        ({0: step(2, 0.2), 1: step(1, 0.6)}, {0: 2, 1: 0}, 0, 2, 0.1),
        ({0: step(2, 0.2)}, {0: 2, 1: 1}, 1, 2, 0.1),
    ],
)
def test_combine(
    steps: dict[int, StepStats], inside: dict[int, int], unstarted: int, running: int, usage: float
) -> None:
    stats = combine(steps, inside)
    assert (stats.inside, stats.running) == (sum(inside.values()), running)
    assert stats.unstarted == unstarted
    assert stats.kv_cache_usage == pytest.approx(usage)


def test_an_idle_engine_has_nothing_waiting_and_nothing_preempted() -> None:
    steps = {
        0: StepStats(2, 5, 0, 0.5, preempted=True),
        1: StepStats(1, 2, 1, 0.5, preempted=False),
    }
    both = combine(steps, {0: 7, 1: 3})
    assert (both.waiting, both.deferred, both.preempted) == (7, 1, True)
    one = combine(steps, {0: 0, 1: 3})
    assert (one.waiting, one.preempted) == (2, False)


def scheduler_stats(**values: Any) -> SimpleNamespace:
    names = ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage")
    return SimpleNamespace(**{**dict.fromkeys(names, 0), **values})


def test_a_report_is_kept_by_engine() -> None:
    recorder = StatsRecorder(clock=lambda: 7.0)
    seen: list[Step] = []
    recorder.listeners.append(seen.append)
    logger = recorder.stat_logger(None, 1)
    logger.record(scheduler_stats(num_running_reqs=2, num_skipped_waiting_reqs=3), iteration(9))
    assert recorder.steps == {1: StepStats(2, 0, 3, 0, preempted=False)}
    assert recorder.last_step_at == 7.0
    assert seen == [Step(engine=1, at=7.0, running=2, generated=9)]


def iteration(generated: int = 0, preempted: int = 0) -> SimpleNamespace:
    return SimpleNamespace(num_generation_tokens=generated, num_preempted_reqs=preempted)


def test_a_preemption_is_over_when_the_queue_is_empty() -> None:
    recorder = StatsRecorder()
    logger = recorder.stat_logger(None, 0)
    steps = [(1, 0), (1, 1), (2, 0), (1, 0), (0, 0), (1, 0)]  # waiting, preempted
    seen = []
    for waiting, preempted in steps:
        stats = scheduler_stats(num_waiting_reqs=waiting)
        logger.record(stats, iteration(preempted=preempted))
        seen.append(recorder.steps[0].preempted)
    assert seen == [False, True, True, True, False, False]


def test_what_a_listener_raises_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder = StatsRecorder()

    def fail(step: Step) -> None:
        raise RuntimeError("boom")

    recorder.listeners.append(fail)
    recorder.stat_logger(None, 0).record(scheduler_stats(), iteration())
    assert recorder.failures == 1


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


def test_values_that_are_observed_together_count_as_one_by_one() -> None:
    bounds = (0.01, 0.025, 0.05, 1.0)
    dice = random.Random(1)
    values = [*bounds, 0.0, 2.0, *(dice.expovariate(20) for _ in range(500))]
    together, singly = (Histogram(n, n, buckets=bounds, registry=None) for n in ("a", "b"))
    observe_all(together, values)
    observe_all(together, [])
    for value in values:
        singly.observe(value)
    found, wanted = (
        [(sample.name[1:], sample.labels, sample.value) for sample in metric.samples]
        for histogram in (together, singly)
        for metric in histogram.collect()
    )
    assert [each[:2] for each in found] == [each[:2] for each in wanted]
    assert [value for name, _, value in found if "created" not in name] == pytest.approx(
        [value for name, _, value in wanted if "created" not in name]
    )


def test_gaps_are_counted_once_and_for_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def record(self: Any, scheduler: Any, iteration: Any, mm: Any, engine: int) -> None:
        gaps = None if iteration is None else list(iteration.inter_token_latencies_iter)
        seen.append((scheduler, gaps, mm, engine))

    monkeypatch.setattr(PrometheusStatLogger, "record", record)
    logger = SeriesLogger.__new__(SeriesLogger)
    histograms = {n: Histogram(f"h{n}", "h", buckets=(1.0,), registry=None) for n in (0, 1)}
    logger.histogram_inter_token_latency = histograms
    iteration = SimpleNamespace(inter_token_latencies_iter=[0.5, 2.0, 0.25])
    logger.record("scheduler", iteration, "mm", engine_idx=1)
    logger.record(None, None)
    assert seen == [("scheduler", [], "mm", 1), (None, None, None, 0)]
    # Whoever comes after it sees them still.
    assert iteration.inter_token_latencies_iter == [0.5, 2.0, 0.25]
    assert [h._sum.get() for h in histograms.values()] == [0.0, 2.75]
    assert [b.get() for b in histograms[1]._buckets] == [2.0, 1.0]
