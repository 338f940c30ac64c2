"""The engine model beside vLLM's own scheduler: the same requests, compared step by step.

vLLM's scheduler needs no model: each step's tokens are made up here.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.simulator.engine import Engine, EngineSettings
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import Work
from tests.loadtest.simulator.factory import TIME
from tests.rig.environment import environment_kept, forget_services
from tests.rig.logs import loggers_kept

BLOCK = 16


@dataclass(frozen=True)
class Vllm:
    """What of vLLM a scheduler takes."""

    config: Any
    scheduler: Any
    structured: Any
    kv: Any
    request: Any
    sampling: Any
    output: Any
    hasher: Any

    def make(self, given: EngineSettings) -> Any:
        scheduler, cache = self.config.scheduler_config, self.config.cache_config
        scheduler.max_num_seqs = given.max_num_seqs
        scheduler.max_num_batched_tokens = given.max_num_batched_tokens
        scheduler.long_prefill_token_threshold = given.long_prefill_token_threshold
        cache.enable_prefix_caching = given.enable_prefix_caching
        cache.num_gpu_blocks = given.kv_blocks + 1
        kv = self.kv(given.kv_blocks + 1)  # one is its own
        return self.scheduler(
            self.config, kv, self.structured(self.config), block_size=given.block_size
        )

    def ask(self, job: Job, prompt: list[int]) -> Any:
        sampling = self.sampling(max_tokens=job.output, ignore_eos=True)
        return self.request(str(job.number), prompt, sampling, None, block_hasher=self.hasher)


@pytest.fixture(scope="module")
def vllm(tiny_model: Path) -> Iterator[Vllm]:
    with environment_kept(), loggers_kept():
        forget_services()
        import torch  # noqa: PLC0415 - it takes seconds
        from vllm import EngineArgs, SamplingParams  # noqa: PLC0415
        from vllm.utils.hashing import sha256  # noqa: PLC0415
        from vllm.v1.core.kv_cache_utils import (  # noqa: PLC0415
            get_request_block_hasher,
            init_none_hash,
        )
        from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415
        from vllm.v1.kv_cache_interface import (  # noqa: PLC0415
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
        )
        from vllm.v1.outputs import ModelRunnerOutput  # noqa: PLC0415
        from vllm.v1.request import Request  # noqa: PLC0415
        from vllm.v1.structured_output import StructuredOutputManager  # noqa: PLC0415

        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        init_none_hash(sha256)
        arguments = EngineArgs(
            model=str(tiny_model),
            max_model_len=512,
            block_size=BLOCK,
            async_scheduling=False,
            enforce_eager=True,
            skip_tokenizer_init=True,
        )
        yield Vllm(
            arguments.create_engine_config(),
            Scheduler,
            StructuredOutputManager,
            lambda blocks: KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            Request,
            SamplingParams,
            ModelRunnerOutput,
            get_request_block_hasher(BLOCK, sha256),
        )


@dataclass(frozen=True)
class Step:
    """What both say of a step: tokens by request, in order; who runs and waits; free blocks.

    What was preempted is left out of the work: vLLM cannot tell its last token from a decode.
    """

    chunks: Sequence[tuple[int, int]]
    running: Sequence[int]
    waiting: Sequence[int]
    free: int
    work: Work | None


def work_of(requests: Any, scheduled: Any) -> Work:
    """Of vLLM's step, after its scheduler has counted the tokens as computed."""
    prefill = decodes = context = attention = 0
    for name, n in scheduled.items():
        request = requests[name]
        before = request.num_computed_tokens - n
        if n == 1 and before >= request.num_prompt_tokens:
            decodes += 1
            context += before
        else:
            prefill += n
            attention += n * (2 * before + n)
    return Work(prefill, decodes, context, attention)


def workload(dice: np.random.Generator) -> tuple[EngineSettings, list[Job], list[int]]:
    """Settings, jobs, and the step before which each comes."""
    chosen = EngineSettings(
        max_num_seqs=int(dice.integers(1, 12)),
        max_num_batched_tokens=int(dice.choice([16, 40, 64, 300])),
        kv_blocks=int(dice.integers(20, 60)),
        block_size=BLOCK,
        enable_prefix_caching=bool(dice.integers(2)),
        long_prefill_token_threshold=int(dice.choice([0, 0, 7, 30])),
    )
    jobs = []
    for number in range(int(dice.integers(1, 30))):
        prompt, output = int(dice.integers(1, 200)), int(dice.integers(1, 100))
        prefix = int(dice.integers(3)) if dice.integers(2) else None
        shared = int(dice.integers(0, prompt + 1)) if prefix is not None else 0
        jobs.append(Job(number, prompt, output, prefix=prefix, shared=shared))
    return chosen, jobs, sorted(dice.integers(0, 60, len(jobs)).tolist())


def of_ours(chosen: EngineSettings, jobs: Sequence[Job], due: Sequence[int]) -> Iterator[Step]:
    engine = Engine(chosen, TIME)
    for step in itertools.count():
        for job, at in zip(jobs, due, strict=True):
            if at == step:
                engine.add(job, 0)
        if engine.idle and step > max(due):
            return
        chunks = engine.schedule()
        running = [job.number for job in engine.running]
        waiting = [job.number for job in engine.waiting]
        preempted = any(job.preemptions for job, _ in chunks)
        yield Step(
            [(job.number, n) for job, n in chunks],
            running,
            waiting,
            engine.blocks.free,
            None if preempted else engine.work(chunks),
        )
        engine.update(chunks)


def of_vllm(
    vllm: Vllm, chosen: EngineSettings, jobs: Sequence[Job], due: Sequence[int]
) -> Iterator[Step]:
    scheduler = vllm.make(chosen)
    token = itertools.count(10**6)  # no two are equal, but for shared prefixes
    for step in itertools.count():
        for job, at in zip(jobs, due, strict=True):
            if at == step:
                common = [1000 * ((job.prefix or 0) + 1) + n for n in range(job.shared)]
                own = [next(token) for _ in range(job.prompt - job.shared)]
                scheduler.add_request(vllm.ask(job, common + own))
        if not scheduler.has_unfinished_requests() and step > max(due):
            return
        found = scheduler.schedule()
        names = list(found.num_scheduled_tokens)
        yield Step(
            [(int(name), n) for name, n in found.num_scheduled_tokens.items()],
            [int(request.request_id) for request in scheduler.running],
            [int(request.request_id) for request in scheduler.waiting],
            scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            None
            if any(scheduler.requests[name].num_preemptions for name in names)
            else work_of(scheduler.requests, found.num_scheduled_tokens),
        )
        made = [[] if scheduler.requests[n].is_prefill_chunk else [next(token)] for n in names]
        places = {name: place for place, name in enumerate(names)}
        scheduler.update_from_output(
            found, vllm.output(req_ids=names, req_id_to_index=places, sampled_token_ids=made)
        )


def test_every_step_of_many_workloads(vllm: Vllm) -> None:
    steps = chunked = preempted = cached = 0
    for seed in range(60):
        chosen, jobs, due = workload(np.random.default_rng(seed))
        pairs = itertools.zip_longest(of_ours(chosen, jobs, due), of_vllm(vllm, chosen, jobs, due))
        for number, (ours, theirs) in enumerate(pairs):
            assert ours == theirs, f"seed {seed}, step {number}: {chosen}"
            steps += 1
            chunked += sum(1 < n < jobs[name].prompt for name, n in ours.chunks)
        preempted += sum(job.preemptions for job in jobs)
        cached += chosen.enable_prefix_caching
    # The workloads are of all kinds.
    assert steps > 5000
    assert chunked > 500
    assert preempted > 200
    assert 20 < cached < 40
