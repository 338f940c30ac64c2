"""What a run says: figures, and whether they are what was to be shown."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadtest.record import Outcome, Record
from tests.e2e.hpa.pace import STEP_S
from tests.e2e.hpa.pod import Life
from tests.e2e.hpa.watch import Sample

BUSY_PERCENT = 85.0
BUSY_SPAN_S = 10
"""A machine is busy when it was above that for so long, outside starts: then no figure counts."""

SLOWEST = 1.2
"""Of a step's held time: above it the machine was the limit, and not the slots."""


@dataclass(frozen=True)
class Figures:
    """Of one run.

    Attributes:
        outcomes: how many requests ended how; a 503 is no refusal, and stands under its status.
        changes: direction changes of the wanted replicas from the begin to the end of the constant
            load: until then the load only rose, so that the first step down is one already.
        wanted: the most replicas that were wanted; `ready` that were ready at once.
        settled: replicas wanted when the constant load ended; `last` when the run did.
        late_rejections: refused in the last minute of the constant load.
        pace: 99th percentile of the time between tokens, seconds: what a step took.
        cpu: the highest mean over `BUSY_SPAN_S` outside starts, percent.
        faults: of pods: gave up, ended by themselves, were killed or ended badly.

    """

    outcomes: Mapping[str, int]
    changes: int
    wanted: int
    ready: int
    settled: int
    last: int
    late_rejections: int
    pace: float
    cpu: float
    faults: tuple[str, ...]

    @property
    def failed(self) -> int:
        """Whatever is not complete, refusals included."""
        return sum(self.outcomes.values()) - self.outcomes.get(Outcome.OK, 0)

    @property
    def rejected(self) -> int:
        return self.outcomes.get(Outcome.REJECTED, 0)


@dataclass(frozen=True)
class Criterion:
    """Something that must be true of a run."""

    says: str
    holds: Callable[[Figures], bool]


@dataclass
class Run:
    """What was recorded; the constant load is from `steady` to `steady_end`, Unix times."""

    began: float
    steady: float
    steady_end: float
    records: list[Record] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def direction_changes(values: Sequence[int]) -> int:
    """How often a series that went one way went the other way next."""
    steps = [b - a for a, b in pairwise(values) if b != a]
    return sum(a * b < 0 for a, b in pairwise(steps))


def busiest(samples: Sequence[Sample], span: int = BUSY_SPAN_S) -> float:
    """The highest mean of the CPU over so many samples in a row, none of them during a start.

    100 when there is no such row: nothing says that the machine was calm.
    """
    calm: list[float] = []
    means = []
    for sample in samples:
        calm = [] if sample.starting else [*calm, sample.cpu][-span:]
        if len(calm) == span:
            means.append(sum(calm) / span)
    return max(means, default=100.0)


def pace(records: Sequence[Record]) -> float:
    """99th percentile of the mean time between the tokens of each request; 0 without any."""
    found = sorted(record.tpot for record in records if record.ok and record.tpot is not None)
    return found[int(0.99 * (len(found) - 1))] if found else 0.0


def faults(lives: Sequence[Life]) -> tuple[str, ...]:
    """What went wrong with pods, a line each."""
    found = []
    for life in lives:
        if life.fault:
            found.append(f"{life.name}: {life.fault}")
        if life.killed:
            found.append(f"{life.name}: killed after its grace period")
        elif life.ended and life.exit_status != 0:
            found.append(f"{life.name}: exit status {life.exit_status}")
    return tuple(found)


def outcome(record: Record) -> str:
    """`rejected` is the door's own 429 alone.

    A 503 is a pod that drained, a wait that was accepted and grew too long, or a balancer that had
    no pod to send to: none of them may happen.
    """
    if record.outcome is Outcome.REJECTED and record.status != 429:
        return f"status {record.status}"
    return record.outcome.value


def figures(run: Run) -> Figures:
    """Of what was recorded."""
    until = [s.desired for s in run.samples if s.at < run.steady_end]
    late = [
        record
        for record, at in zip(run.records, run.sent, strict=True)
        if record.outcome is Outcome.REJECTED and run.steady_end - 60 <= at < run.steady_end
    ]
    return Figures(
        outcomes=dict(Counter(map(outcome, run.records))),
        changes=direction_changes(until),
        wanted=max(s.desired for s in run.samples),
        ready=max(s.ready for s in run.samples),
        settled=until[-1],
        last=run.samples[-1].desired,
        late_rejections=len(late),
        pace=pace(run.records),
        cpu=busiest(run.samples),
        faults=faults(run.lives),
    )


def judged(found: Figures, criteria: Sequence[Criterion]) -> list[tuple[str, bool]]:
    """Each criterion and whether it holds; first those of every run."""
    common = (
        Criterion(
            f"CPU outside starts stays below {BUSY_PERCENT:g} %", lambda f: f.cpu <= BUSY_PERCENT
        ),
        Criterion(
            "a pod is bound by its slots: steps take as long as they are held",
            lambda f: f.pace <= SLOWEST * STEP_S,
        ),
        Criterion("no pod fails or has to be killed", lambda f: not f.faults),
    )
    return [(criterion.says, criterion.holds(found)) for criterion in (*common, *criteria)]
