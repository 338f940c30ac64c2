"""vLLM's scheduler without a model: which tokens of which sequences each step computes.

Follows `Scheduler.schedule` of vLLM 0.32 for a decoder without speculation, first come, first
served, synchronous scheduling; `tests/loadtest/simulator/test_engine_vllm.py` compares the two
step by step.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from loadtest.simulator.blocks import Blocks, CachedBlocks
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import StepTime, Work
from loadtest.simulator.ticks import Ticks

GAP: Final = math.log(1.005)
"""Gaps between tokens are counted in bins of half a per cent."""


@dataclass(frozen=True)
class EngineSettings:
    """vLLM's own names, but for the blocks.

    Attributes:
        kv_blocks: that requests can hold; vLLM keeps one more for itself.

    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_blocks: int = 4096
    block_size: int = 16
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must not be below max_num_seqs")
        if min(self.max_num_seqs, self.kv_blocks, self.block_size) < 1:
            raise ValueError("an engine has at least one slot and one block")


class Engine:
    """One engine, step by step. What each attribute counts is since the start.

    Attributes:
        now: when the next step can begin.
        gaps: tokens of decoding sequences by the logarithm of their step's time.

    """

    def __init__(self, settings: EngineSettings, time: StepTime) -> None:
        kind = CachedBlocks if settings.enable_prefix_caching else Blocks
        self.settings = settings
        self.time = time
        self.blocks: Blocks = kind(settings.kv_blocks, settings.block_size)
        self.now: Ticks = 0
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.steps = self.preemptions = self.tokens = 0
        self.busy: Ticks = 0
        self.gaps: Counter[int] = Counter()
        self.most = Work(0, 0, 0, 0)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def unfinished(self) -> int:
        return len(self.running) + len(self.waiting)

    def produced(self, job: Job) -> int:
        """Output tokens of a sequence that it has."""
        return job.produced

    def quiet(self) -> Ticks:
        """Until when nothing starts or ends, unless something is added."""
        return 10**30 if self.idle else self.now

    def add(self, job: Job, at: Ticks) -> None:
        """Queue a sequence.

        Raises:
            ValueError: it could never be served to its end.

        """
        if job.output < 1 or job.prompt < 1:
            raise ValueError(f"job {job.number}: a prompt and an answer have at least one token")
        if self.blocks.of(job.prompt + job.output - 1) > self.blocks.total:
            raise ValueError(f"job {job.number}: the KV cache is too small for it alone")
        if self.idle:
            self.now = max(self.now, at)
        self.waiting.append(job)

    def run(self, until: Ticks) -> list[Job]:
        """Begin steps before `until`, up to one in which a sequence starts or ends.

        Returns:
            Those that ended; `now` is when.

        """
        while self.now < until and not self.idle:
            begun, ended = self.step(until)
            if begun or ended:
                return ended
        return []

    def step(self, until: Ticks) -> tuple[bool, list[Job]]:
        """One step: whether a sequence started, and those that ended."""
        return self._stepwise()

    def _stepwise(self) -> tuple[bool, list[Job]]:
        before = len(self.running)
        chunks = self.schedule()
        begun = len(self.running) > before
        if not chunks:
            # Everything was preempted for the first in the queue, which is admitted next.
            return begun, []
        start = self.now
        self._spend(self.work(chunks), 1)
        self._mark(chunks, start)
        return begun, self.update(chunks)

    # -- what a step computes

    def schedule(self) -> list[tuple[Job, int]]:
        """The tokens that each sequence has computed in this step."""
        chunks: list[tuple[Job, int]] = []
        budget = self.settings.max_num_batched_tokens
        cap = self._cap()
        preempted = self.preemptions
        index = 0
        while index < len(self.running) and budget:
            job = self.running[index]
            n = min(job.tokens - job.computed, cap, budget)
            if not self._room(job, job.computed + n):
                break
            chunks.append((job, n))
            budget -= n
            index += 1
        if preempted == self.preemptions:
            self._admit(chunks, budget, cap)
        return chunks

    def _cap(self) -> int:
        """Of one chunk of a prompt; one request alone has nobody to leave room for."""
        threshold = self.settings.long_prefill_token_threshold
        alone = len(self.running) + len(self.waiting) < 2
        return threshold if threshold and not alone else self.settings.max_num_batched_tokens

    def _room(self, job: Job, tokens: int) -> bool:
        """Have blocks for so many tokens of it, if need be by preempting the last ones."""
        while not self.blocks.grow(job, tokens):
            victim = self.running.pop()
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _preempt(self, job: Job) -> None:
        self.blocks.release(job)
        job.computed = 0
        job.prefilling = True
        job.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(job)

    def _admit(self, chunks: list[tuple[Job, int]], budget: int, cap: int) -> None:
        """From the queue, in order, as long as slots, tokens and blocks last."""
        while self.waiting and budget and len(self.running) < self.settings.max_num_seqs:
            job = self.waiting[0]
            cached = self.blocks.admit(job)
            if cached is None:
                return
            job.computed = cached
            n = min(job.tokens - cached, cap, budget)
            self.blocks.grow(job, cached + n)
            self.running.append(self.waiting.popleft())
            chunks.append((job, n))
            budget -= n

    # -- what comes of it

    def update(self, chunks: list[tuple[Job, int]]) -> list[Job]:
        """A token for each sequence that is computed as far as it is known; those that ended."""
        ended = []
        for job, n in chunks:
            job.computed += n
            if job.computed < job.tokens:
                continue
            job.prefilling = False
            job.produced += 1
            self.tokens += 1
            if job.first is None:
                job.first = self.now
            if job.produced == job.output:
                self._end(job)
                ended.append(job)
        return ended

    def _end(self, job: Job) -> None:
        job.ended = self.now
        self.running.remove(job)
        self.blocks.release(job)

    def _mark(self, chunks: list[tuple[Job, int]], start: Ticks) -> None:
        for job, _ in chunks:
            if job.started is None:
                job.started = start

    def work(self, chunks: list[tuple[Job, int]]) -> Work:
        """What a step computes, before it is counted as computed."""
        prefill = decodes = context = attention = 0
        for job, n in chunks:
            if job.prefilling:
                prefill += n
                attention += n * (2 * job.computed + n)
            else:
                decodes += 1
                context += job.computed
        return Work(prefill, decodes, context, attention)

    def _spend(self, work: Work, steps: int) -> None:
        """Let the time of a step, or of equal steps of a stretch, go by."""
        if steps == 1:
            taken = self.time.of(work)
        else:
            taken = self.time.stretch(work.decodes, work.context, steps)
        self.now += taken
        self.busy += taken
        self.steps += steps
        if work.decodes:
            self.gaps[int(math.log(taken / steps) / GAP)] += work.decodes * steps
        self._note(work, steps)

    def _note(self, work: Work, steps: int) -> None:
        """Keep the most of each term, to be held against what a fit has seen."""
        most, context = self.most, work.context + work.decodes * (steps - 1)
        if (
            work.prefill > most.prefill
            or work.decodes > most.decodes
            or context > most.context
            or work.attention > most.attention
        ):
            again = Work(work.prefill, work.decodes, context, work.attention)
            self.most = Work.most_of((most, again))
