"""The scheduler's statistics, as the engine's output loop reports them."""

import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import Histogram
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase

from app.engine.steps import StepLog
from app.workload import DecodingStats, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepStats:
    """One engine's last report: sequences, KV usage from 0 to 1.

    Attributes:
        preempted: a sequence lost its place for want of KV cache, and the engine's queue, which
            it went to, has not been empty since.

    """

    running: int
    waiting: int
    deferred: int
    kv_cache_usage: float
    preempted: bool


class StatsRecorder:
    """Keeps each engine's last report. Its stat loggers never raise.

    An exception in `record` would end vllm's output loop and with it every request.

    Attributes:
        log: where each step is kept; None: nowhere.

    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, log: StepLog | None = None
    ) -> None:
        self.clock = clock
        self.log = log
        self.steps: dict[int, StepStats] = {}
        self.last_step_of: dict[int, float] = {}
        self.listeners: list[Callable[[Step], None]] = []
        self.failures = 0

    @property
    def last_step_at(self) -> float | None:
        """When any engine made its last step, by the clock."""
        return max(self.last_step_of.values(), default=None)

    def stat_logger(self, vllm_config: VllmConfig, engine_index: int = 0) -> StatLoggerBase:
        """The factory that vllm's `stat_loggers=` asks for, called once per engine."""
        return _StatLogger(vllm_config, engine_index, self)

    def store(self, engine_index: int, stats: Any, iteration: Any) -> None:
        self.last_step_of[engine_index] = self.clock()
        if stats is not None:
            waiting = stats.num_waiting_reqs
            last = self.steps.get(engine_index)
            was = last is not None and last.preempted
            now = iteration is not None and iteration.num_preempted_reqs > 0
            self.steps[engine_index] = StepStats(
                running=stats.num_running_reqs,
                waiting=waiting,
                deferred=stats.num_skipped_waiting_reqs,
                kv_cache_usage=stats.kv_cache_usage,
                preempted=waiting > 0 and (was or now),
            )
            self._report(engine_index, stats.num_running_reqs, iteration)
            if self.log is not None:
                self.log.add(engine_index, self.last_step_of[engine_index], stats, iteration)

    def _report(self, engine_index: int, running: int, iteration: Any) -> None:
        generated = iteration.num_generation_tokens if iteration is not None else 0
        step = Step(engine_index, self.last_step_of[engine_index], running, generated)
        for listener in self.listeners:
            listener(step)


class _StatLogger(StatLoggerBase):
    def __init__(
        self, vllm_config: VllmConfig, engine_index: int = 0, recorder: StatsRecorder | None = None
    ) -> None:
        self.engine_index = engine_index
        self.recorder = recorder or StatsRecorder()

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        try:
            self.recorder.store(self.engine_index, scheduler_stats, iteration_stats)
        except Exception:
            if not self.recorder.failures:
                logger.exception("the engine's statistics cannot be read")
            self.recorder.failures += 1

    def log_engine_initialized(self) -> None:
        """Nothing to do: our own start-up log says it."""


class SeriesLogger(PrometheusStatLogger):
    """vLLM's own series; the gaps between tokens are counted a step at a time.

    vLLM observes each by itself, which is a twentieth of a streamed token's whole cost here.
    """

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        gaps: list[float] = []
        if iteration_stats is not None:
            gaps = iteration_stats.inter_token_latencies_iter
            observe_all(self.histogram_inter_token_latency[engine_idx], gaps)
            iteration_stats.inter_token_latencies_iter = []
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
        if iteration_stats is not None:
            iteration_stats.inter_token_latencies_iter = gaps


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """What `histogram.observe` does for each of the values, which are finite."""
    histogram._sum.inc(sum(values))
    buckets = Counter(map(partial(bisect_left, histogram._upper_bounds), values))
    for bucket, count in buckets.items():
        histogram._buckets[bucket].inc(count)


def combine(steps: Mapping[int, StepStats], inside: Mapping[int, int]) -> DecodingStats:
    """What the engines are doing.

    An engine reports only while it steps, so its last report may be from before the last
    sequence ended: what it can be running is bounded by what it has.

    Args:
        steps: the last report of each engine.
        inside: unfinished sequences that each engine has been given; an idle one has 0.

    """
    busy = [
        (steps[engine], sequences)
        for engine, sequences in inside.items()
        if sequences > 0 and engine in steps
    ]
    return DecodingStats(
        inside=sum(inside.values()),
        running=sum(min(step.running, sequences) for step, sequences in busy),
        waiting=sum(min(step.waiting, sequences) for step, sequences in busy),
        deferred=sum(min(step.deferred, sequences) for step, sequences in busy),
        kv_cache_usage=sum(step.kv_cache_usage for step, _ in busy) / max(1, len(inside)),
        preempted=any(step.preempted for step, _ in busy),
    )
