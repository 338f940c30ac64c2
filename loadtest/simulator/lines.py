"""Who is next at the front door: by class, then the tenant that was served least, then arrival."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loadtest.simulator.job import Job
from loadtest.simulator.ticks import Ticks

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
AGED_EVERY = 8


@dataclass(eq=False)
class Flow:
    """One tenant's work; `settled` are the weighted tokens of what has ended, and of prompts."""

    settled: float = 0.0
    waiting: int = 0
    inside: dict[int, Job] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        return self.waiting > 0 or bool(self.inside)


@dataclass(eq=False)
class Line:
    """Those of one tenant and one class."""

    flow: Flow
    priority: int
    jobs: deque[Job] = field(default_factory=deque)


class Lines:
    """All lines.

    Args:
        aging: after this wait one grant in nine goes to whoever has waited longest.
        produced: output tokens of a sequence that the engine has.

    """

    def __init__(self, aging: Ticks, produced: Callable[[Job], int]) -> None:
        self.count = 0
        self._aging = aging
        self._produced = produced
        self._flows: dict[str, Flow] = {}
        self._lines: dict[tuple[int, str], Line] = {}
        self._floor = 0.0
        self._since_aged = 0

    def add(self, job: Job) -> None:
        """Let one wait."""
        line = self.line_of(job)
        line.jobs.append(job)
        line.flow.waiting += 1
        self.count += 1

    def remove(self, job: Job) -> None:
        """Take one out that waits."""
        line = self.line_of(job)
        line.jobs.remove(job)
        line.flow.waiting -= 1
        self.count -= 1
        self._left(line.flow)

    def granted(self, job: Job, now: Ticks) -> None:
        """It goes to the engine."""
        flow = self._flows[job.tenant]
        flow.inside[job.number] = job
        flow.settled += PROMPT_WEIGHT * job.prompt
        aged = now - job.arrived >= self._aging
        self._since_aged = 0 if aged else self._since_aged + 1
        self.remove(job)

    def ended(self, job: Job) -> None:
        """The engine is done with it."""
        flow = self._flows[job.tenant]
        del flow.inside[job.number]
        flow.settled += OUTPUT_WEIGHT * job.produced
        self._left(flow)

    def first(self, now: Ticks) -> Job:
        """Whose turn it is, of those that wait."""
        heads = [line for line in self._lines.values() if line.jobs]
        if len(heads) == 1:
            return heads[0].jobs[0]
        oldest = min((line.jobs[0] for line in heads), key=lambda job: job.number)
        if self._since_aged >= AGED_EVERY and now - oldest.arrived >= self._aging:
            return oldest
        return min(heads, key=self._rank).jobs[0]

    def ahead_of(self, job: Job) -> int:
        """How many would go before one that comes now."""
        line = self.line_of(job)
        ahead = len(line.jobs)
        served = None
        for other in self._lines.values():
            if other is line or not other.jobs or other.priority > line.priority:
                continue
            if other.priority < line.priority:
                ahead += len(other.jobs)
                continue
            served = self._served(line.flow) if served is None else served
            turns = len(line.jobs) + (self._served(other.flow) <= served)
            ahead += min(len(other.jobs), turns)
        return ahead

    def __iter__(self) -> Iterator[Job]:
        for line in self._lines.values():
            yield from line.jobs

    def line_of(self, job: Job) -> Line:
        """Where it would wait."""
        flow = self._flows.setdefault(job.tenant, Flow())
        if not flow.active:
            others = [self._served(other) for other in self._flows.values() if other.active]
            self._floor = min(others, default=self._floor)
            flow.settled = max(flow.settled, self._floor)
        return self._lines.setdefault((job.priority, job.tenant), Line(flow, job.priority))

    def _rank(self, line: Line) -> tuple[int, float, int]:
        return line.priority, self._served(line.flow), len(line.flow.inside)

    def _served(self, flow: Flow) -> float:
        made = sum(self._produced(job) for job in flow.inside.values())
        return flow.settled + OUTPUT_WEIGHT * made

    def _left(self, flow: Flow) -> None:
        if not flow.active and not any(other.active for other in self._flows.values()):
            self._floor = flow.settled
