"""The same engine, event by event: what decodes is counted as a group and not one by one.

As long as blocks and tokens last, nothing depends on the order of what runs: each decoding
sequence computes one token in each step. So a step costs as much as its prompts, and steps without
prompts, which last until a sequence ends, a request comes or blocks run out, are made in one go.
Where order matters (a preemption, a budget that ends among decoding sequences) the step is made as
`Engine` makes it.
"""

import heapq

from loadtest.simulator.engine import Engine, EngineSettings
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import StepTime, Work
from loadtest.simulator.ticks import Ticks


class FastEngine(Engine):
    """Equal to `Engine`, to the tick. With a prefix cache each step is made by itself."""

    def __init__(self, settings: EngineSettings, time: StepTime) -> None:
        super().__init__(settings, time)
        self._whole = settings.enable_prefix_caching
        self._prefilling: list[Job] = []
        self._clock = 0  # decoding steps
        self._count = self._context = 0
        self._ends: list[tuple[int, int, Job]] = []
        # By the remainder of the clock: how many need a block more in such a step.
        self._needs = [0] * settings.block_size

    def produced(self, job: Job) -> int:
        if job.prefilling or self._whole or job.ended is not None:
            return job.produced
        return self._clock - job.born

    def quiet(self) -> Ticks:
        if self.idle or self._whole or self._prefilling or self._admits():
            return super().quiet()
        # The step in which the first one ends begins after those before it.
        steps = self._within_blocks(self._ends[0][0] - self._clock)
        return self.now + self.time.stretch(self._count, self._context, max(0, steps - 1))

    def step(self, until: Ticks) -> tuple[bool, list[Job]]:
        if self._whole:
            return self._stepwise()
        if not self._prefilling and not self._admits():
            steps = self._stretch_steps(until)
            return (False, self._stretch(steps)) if steps else self._by_one()
        chunks = self._continued()
        return self._by_one() if chunks is None else self._mixed(chunks)

    # -- only decoding

    def _admits(self) -> bool:
        """Whether the first in the queue starts in this step, as far as it is known before."""
        return (
            bool(self.waiting)
            and len(self.running) < self.settings.max_num_seqs
            and self._count < self.settings.max_num_batched_tokens
            and self.blocks.of(self.waiting[0].tokens)
            <= self.blocks.free - self._needs[self._clock % self.settings.block_size]
        )

    def _stretch_steps(self, until: Ticks) -> int:
        """Until one ends, blocks run out, or a step begins at `until` or later; 0: no room."""
        steps = self._within_blocks(self._ends[0][0] - self._clock)
        if steps < 2:
            return steps
        return self.time.until(self._count, self._context, until - self.now, steps)

    def _within_blocks(self, steps: int) -> int:
        """How many of so many steps there are blocks for."""
        size, free = self.settings.block_size, self.blocks.free
        if (steps // size + 1) * self._count <= free:
            return steps
        rounds = min(steps // size, free // self._count)
        free -= rounds * self._count
        found = rounds * size
        while found < steps:
            free -= self._needs[(self._clock + found) % size]
            if free < 0:
                return found
            found += 1
        return steps

    def _stretch(self, steps: int) -> list[Job]:
        size = self.settings.block_size
        rounds, rest = divmod(steps, size)
        need = rounds * self._count
        for offset in range(rest):
            need += self._needs[(self._clock + offset) % size]
        self.blocks.free -= need
        self._spend(Work(0, self._count, self._context, 0), steps)
        return self._tick(steps)

    def _tick(self, steps: int) -> list[Job]:
        """All that decode have so many tokens more; those that ended."""
        self._clock += steps
        self._context += self._count * steps
        self.tokens += self._count * steps
        ended = []
        while self._ends and self._ends[0][0] <= self._clock:
            job = heapq.heappop(self._ends)[2]
            self._leave(job)
            self._end(job)
            ended.append(job)
        return ended

    # -- prompts beside it

    def _continued(self) -> list[tuple[Job, int]] | None:
        """The chunks of prompts that were begun; None: their order matters, or blocks run out."""
        budget = self.settings.max_num_batched_tokens - self._count
        free = self.blocks.free - self._needs[self._clock % self.settings.block_size]
        cap = self._cap()
        chunks: list[tuple[Job, int]] = []
        for job in self._prefilling:
            n = min(job.tokens - job.computed, cap)
            if n > budget:
                if self.running[self._count] is not self._prefilling[0]:
                    return None
                n = budget
            if n:
                free -= self.blocks.of(job.computed + n) - job.blocks
                budget -= n
                chunks.append((job, n))
        return None if free < 0 else chunks

    def _mixed(self, chunks: list[tuple[Job, int]]) -> tuple[bool, list[Job]]:
        self.blocks.free -= self._needs[self._clock % self.settings.block_size]
        for job, n in chunks:
            self.blocks.grow(job, job.computed + n)
        before = len(self.running)
        budget = self.settings.max_num_batched_tokens - self._count
        self._admit(chunks, budget - sum(n for _, n in chunks), self._cap())
        begun = self.running[before:]
        start, work = self.now, self.work(chunks)
        self._spend(Work(work.prefill, self._count, self._context, work.attention), 1)
        self._mark(chunks, start)
        ended = self._tick(1)
        ended += self.update(chunks)
        self._prefilling = [job for job in (*self._prefilling, *begun) if job.prefilling]
        for job, _ in chunks:
            if not job.prefilling and job.ended is None:
                self._enter(job)
        return bool(begun), ended

    # -- the group

    def _enter(self, job: Job) -> None:
        job.born = self._clock - job.produced
        self._count += 1
        self._context += job.computed
        self._needs[(self._clock - job.computed) % self.settings.block_size] += 1
        heapq.heappush(self._ends, (job.born + job.output, job.number, job))

    def _leave(self, job: Job) -> None:
        self._write(job)
        self._count -= 1
        self._context -= job.computed
        self._needs[(self._clock - job.computed) % self.settings.block_size] -= 1

    def _write(self, job: Job) -> None:
        """What the group knows of a sequence."""
        job.produced = self._clock - job.born
        job.computed = job.tokens - 1
        job.blocks = self.blocks.of(job.computed)

    def _by_one(self) -> tuple[bool, list[Job]]:
        """A step in which the order matters: out of the group, and into it again."""
        for _, _, job in self._ends:
            self._write(job)
        self._ends, self._count, self._context = [], 0, 0
        self._needs = [0] * self.settings.block_size
        found = self._stepwise()
        self._prefilling = [job for job in self.running if job.prefilling]
        for job in self.running:
            if not job.prefilling:
                self._enter(job)
        return found
