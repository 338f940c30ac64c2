"""The scheduler's statistics, as the engine's output loop reports them."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from app.engine.protocol import DecodingStats

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepStats:
    """One engine's last report: sequences, KV usage from 0 to 1, monotonic seconds."""

    running: int
    waiting: int
    kv_cache_usage: float
    at: float


class StatsRecorder:
    """Keeps each engine's last report. Its stat loggers never raise.

    An exception in `record` would end vllm's output loop and with it every request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.steps: dict[int, StepStats] = {}
        self.last_step_at: float | None = None
        self.failures = 0

    def stat_logger(self, vllm_config: VllmConfig, engine_index: int = 0) -> StatLoggerBase:
        """The factory that vllm's `stat_loggers=` asks for, called once per engine."""
        return _StatLogger(vllm_config, engine_index, self)

    def store(self, engine_index: int, stats: Any) -> None:
        self.last_step_at = self.clock()
        if stats is not None:
            self.steps[engine_index] = StepStats(
                running=stats.num_running_reqs,
                waiting=stats.num_waiting_reqs + stats.num_skipped_waiting_reqs,
                kv_cache_usage=stats.kv_cache_usage,
                at=self.last_step_at,
            )


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
            self.recorder.store(self.engine_index, scheduler_stats)
        except Exception:
            if not self.recorder.failures:
                logger.exception("the engine's statistics cannot be read")
            self.recorder.failures += 1

    def log_engine_initialized(self) -> None:
        """Nothing to do: our own start-up log says it."""


def combine(steps: Mapping[int, StepStats], handed: Mapping[int, int]) -> DecodingStats:
    """What the engines are doing, given the unfinished sequences that each one has.

    An engine reports only while it steps, so its last report may be from before the last
    sequence ended: what it can be running is bounded by what it has.
    """
    running, usage = 0, 0.0
    for engine, sequences in handed.items():
        step = steps.get(engine)
        if step is not None and sequences > 0:
            running += min(step.running, sequences)
            usage += step.kv_cache_usage
    return DecodingStats(
        waiting=sum(handed.values()) - running,
        running=running,
        kv_cache_usage=usage / max(1, len(handed)),
    )
