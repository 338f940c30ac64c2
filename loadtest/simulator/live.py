"""vLLM itself, driven in this process as a front end would: requests in, tokens and records out.

The engine runs in a process of its own, as it does in a service; between it and the caller is
`AsyncLLM` alone, without HTTP.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest import vllm_library
from loadtest.errors import UsageError
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.records import Record

UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""What vLLM takes for one GPU: the model runs in the engine's process."""


@dataclass(frozen=True)
class LiveSettings:
    """What the engine is started with, by vLLM's own names but for the first and the blocks."""

    model: Path
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 1024
    max_model_len: int = 2048
    kv_blocks: int | None = None
    kv_cache_gib: float = 1.0
    threads: int = 1


def vllm(threads: int) -> Any:
    """The package."""
    found = vllm_library.imported("this", threads, {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})
    # vLLM would log each step, as it is asked for the details of each.
    logging.getLogger("vllm.v1.metrics.loggers").setLevel(logging.ERROR)
    return found


@dataclass(frozen=True)
class Planned:
    """A request: when it is to come (seconds from the start) and its tokens."""

    at: float
    prompt: Sequence[int]
    output: int


@dataclass
class Lived:
    """What became of a request; all times are monotonic seconds.

    Attributes:
        due: when it was to come.
        sent: when it was handed over.
        scheduled: when the engine first began with it, by the engine's clock.
        times: of each token at the client.
        made: of the same by the engine's clock: the end of the step.

    """

    planned: Planned
    due: float
    sent: float = 0.0
    scheduled: float = 0.0
    times: list[float] = field(default_factory=list)
    made: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> NDArray[np.float64]:
        """Between its tokens; those that came together share theirs."""
        times, counts = np.unique(self.times, return_counts=True)
        shares: NDArray[np.float64] = np.repeat(np.diff(times) / counts[1:], counts[1:])
        return shares


class Live:
    """A started engine."""

    def __init__(self, package: Any, settings: LiveSettings) -> None:
        self._vllm = package
        self.records: list[Record] = []
        self.preemptions = 0
        arguments = package.AsyncEngineArgs(
            model=str(settings.model),
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            kv_cache_memory_bytes=int(settings.kv_cache_gib * 2**30),
            # One more is kept by vLLM for itself.
            num_gpu_blocks_override=settings.kv_blocks and settings.kv_blocks + 1,
            distributed_executor_backend=UNIPROC,
            enable_logging_iteration_details=True,
            enable_prefix_caching=False,
            async_scheduling=False,
            enforce_eager=True,
        )
        try:
            self.llm = package.AsyncLLMEngine.from_engine_args(
                arguments, stat_loggers=[lambda *_: _StatLogger(self)]
            )
        except (ValueError, OSError) as error:
            raise UsageError(f"{settings.model}: {' '.join(str(error).split())}") from None
        self.vocabulary: int = self.llm.model_config.get_vocab_size()
        cache = self.llm.vllm_config.cache_config
        self.engine = EngineSettings(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            kv_blocks=cache.num_gpu_blocks - 1,
            block_size=cache.block_size,
        )

    def record(self, stats: Any, iteration: Any) -> None:
        """Keep what is told of a step."""
        if stats is not None and stats.iteration_details is not None:
            record = recorded(stats, iteration, self.llm.output_processor.request_states)
            self.records.append(record)
            self.preemptions += record.preempted

    async def request(self, planned: Planned, name: str, due: float) -> Lived:
        """Hand one over and read its tokens."""
        lived = Lived(planned, due, time.monotonic())
        outputs = self.llm.generate(
            {"prompt_token_ids": list(planned.prompt)},
            self._vllm.SamplingParams(
                temperature=0.0,
                max_tokens=planned.output,
                ignore_eos=True,
                output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
            ),
            name,
        )
        async for output in outputs:
            now, count = time.monotonic(), len(output.outputs[0].token_ids)
            lived.times += [now] * count
            lived.made += [output.metrics.last_token_ts] * count
            lived.scheduled = output.metrics.scheduled_ts
        if len(lived.times) != planned.output:
            raise RuntimeError(f"{len(lived.times)} tokens of {planned.output}: not comparable")
        return lived

    async def serve(self, plan: Sequence[Planned]) -> list[Lived]:
        """Send each at its time; all that became of them, in the same order."""
        start = time.monotonic() + 0.05
        tasks = []
        for number, planned in enumerate(plan):
            due = start + planned.at
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            name = f"{start}-{number}"
            tasks.append(asyncio.create_task(self.request(planned, name, due)))
        return list(await asyncio.gather(*tasks))

    @property
    def waited(self) -> float:
        """Seconds for which the engine could have run and had no core: other processes had them."""
        (process,) = self.llm.engine_core.resources.engine_manager.processes
        fields = Path(f"/proc/{process.pid}/schedstat").read_text(encoding="utf-8").split()
        return int(fields[1]) / 1e9

    def take(self) -> list[Record]:
        """The records since the last call."""
        found, self.records = self.records, []
        return found


class _StatLogger:
    """What vLLM asks of a `StatLoggerBase`, whose class is not known without vLLM."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        self._live.record(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to do."""

    def log(self) -> None:
        """Nothing to do."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Nothing to do."""


def recorded(stats: Any, iteration: Any, states: Any) -> Record:
    """What vLLM's statistics say of a step.

    Args:
        stats: the scheduler's.
        iteration: the front end's; None where no sequence made a token.
        states: the front end's sequences.

    """
    details = stats.iteration_details
    prompts: list[tuple[int, int]] = []
    context, gaps = 0, []
    if iteration is not None:
        gaps = iteration.inter_token_latencies_iter
        now = max((s.stats.last_token_ts for s in states.values() if s.stats), default=0.0)
        for state in states.values():
            own = state.stats
            if own.num_generation_tokens == 1 and own.last_token_ts == now:
                prompts.append((state.prompt_len, state.num_cached_tokens))
            elif own.num_generation_tokens > 1 and own.last_token_ts == now:
                context += state.prompt_len + own.num_generation_tokens - 2
        for one in iteration.finished_requests:
            if one.num_generation_tokens == 1:
                prompts.append((one.num_prompt_tokens, one.num_cached_tokens))
            else:
                context += one.num_prompt_tokens + one.num_generation_tokens - 2
    return Record(
        at=time.monotonic(),
        prefill=details.num_ctx_tokens,
        decodes=details.num_generation_requests,
        context=context,
        prompts=tuple(prompts),
        gap=min(gaps, default=None),
        running=stats.num_running_reqs,
        waiting=stats.num_waiting_reqs,
        preempted=iteration.num_preempted_reqs if iteration is not None else 0,
        recomputed=details.num_generation_tokens - details.num_generation_requests,
    )


@asynccontextmanager
async def started(settings: LiveSettings) -> AsyncIterator[Live]:
    """An engine, until the end of the context."""
    live = Live(vllm(settings.threads), settings)
    try:
        yield live
    finally:
        live.llm.shutdown(timeout=5)


def random_prompt(dice: np.random.Generator, vocabulary: int, tokens: int) -> list[int]:
    """Token ids."""
    found: list[int] = dice.integers(0, vocabulary, tokens).tolist()
    return found
