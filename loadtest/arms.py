"""Both arms of the experiment in `batching`: what they serve, how they admit it, what it took."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadtest import bootstrap, lengths, traces
from loadtest.errors import UsageError
from loadtest.lengths import Lengths
from loadtest.metrics import MIN_FOR_P99

POPULATION = 10_000
"""Lengths of which those of an exponential workload are drawn."""
DRAWS = 2000
LOAD = 0.7
"""The rate of the open loop, as a share of the static arm's throughput."""
NOISE = 0.02
"""How far above the bound a ratio may be before the arms are said to differ in something else."""
STATISTICS: Mapping[str, bootstrap.Statistic] = {
    "mean": bootstrap.mean,
    "p50": bootstrap.median,
    "p99": bootstrap.percentile(99),
}

Seconds: TypeAlias = NDArray[np.float64]


# -- the workloads


@dataclass(frozen=True)
class Workload:
    """Requests to draw from, each with the lengths of its prompt and its output in tokens.

    Attributes:
        scales: what the lengths of a trace (prompts, outputs) were multiplied by.

    """

    name: str
    prompts: Lengths
    outputs: Lengths
    scales: tuple[float, float] = (1.0, 1.0)

    def draw(self, count: int, dice: np.random.Generator) -> tuple[Lengths, Lengths]:
        """`count` requests, each independent of the others."""
        chosen = dice.integers(0, len(self.outputs), count)
        return self.prompts[chosen], self.outputs[chosen]


def synthetic(kind: str, prompt_tokens: int, output_tokens: int, seed: int) -> Workload:
    """Outputs that are `fixed` or `exponential`, of this mean; prompts of one length."""
    dice = np.random.default_rng(seed)
    outputs = lengths.draw(f"{kind}:{output_tokens}", POPULATION, dice)
    return Workload(kind, np.full(POPULATION, prompt_tokens), outputs)


def of_trace(path: Path, scale: float | None, prompt_tokens: int, output_tokens: int) -> Workload:
    """An Azure trace, its lengths multiplied by `scale`, or else brought to these means.

    Raises:
        UsageError: it cannot be read.

    """
    found = traces.read(path, "azure", np.random.default_rng(0))
    prompts = np.array([arrival.prompt_tokens for arrival in found], dtype=np.float64)
    outputs = np.array([arrival.output_tokens for arrival in found], dtype=np.float64)
    if not (prompts.any() and outputs.any()):
        raise UsageError(f"{path}: all its prompts or all its outputs are empty")
    scales = (
        scale or prompt_tokens / float(prompts.mean()),
        scale or output_tokens / float(outputs.mean()),
    )
    return Workload(path.stem, _scaled(prompts, scales[0]), _scaled(outputs, scales[1]), scales)


def _scaled(values: NDArray[np.float64], scale: float) -> Lengths:
    whole: Lengths = np.maximum(1, np.rint(values * scale)).astype(np.int64)
    return whole


def bound(outputs: Lengths, batch: int) -> float:
    """E[the longest of `batch` lengths] / E[length], of lengths drawn from these: exact.

    The i-th of n in order is the longest with probability (i/n)^B − ((i−1)/n)^B.
    """
    ranks = np.arange(len(outputs) + 1) / len(outputs)
    return float(np.sort(outputs) @ np.diff(ranks**batch) / outputs.mean())


def bound_of_run(outputs: Lengths, batch: int) -> float:
    """The same of the very batches of a run: their mean longest over the mean length."""
    return float(outputs.reshape(-1, batch).max(axis=1).mean() / outputs.mean())


# -- one round


@dataclass(frozen=True)
class Job:
    """One request: token ids, and how many tokens it is to yield."""

    prompt: Sequence[int]
    output_tokens: int


class Engine(Protocol):
    """What a round needs of an engine with B slots."""

    def add(self, index: int, job: Job) -> None:
        """Hand a request over; it takes a slot in the next step that has one."""

    def step(self) -> Sequence[tuple[int, int, bool]]:
        """One forward pass: (index, new tokens, whether it was the last) of each that ran."""


class Clock(Protocol):
    """Where a round has its time from."""

    def now(self) -> float:
        """Seconds."""

    def sleep(self, seconds: float) -> None: ...


class Wall:
    """The time on the wall."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


Admission: TypeAlias = Callable[[int, int, int], int]
"""(ready requests, those in the engine, B) to how many of the ready ones are handed over."""


def static(ready: int, in_engine: int, batch: int) -> int:
    """As many as fit, and none until all of them have finished."""
    return 0 if in_engine else min(ready, batch)


def continuous(ready: int, in_engine: int, batch: int) -> int:
    """All: the engine gives each free slot to the next."""
    return ready


ARMS: dict[str, Admission] = {"static": static, "continuous": continuous}


@dataclass(frozen=True)
class Served:
    """A round of one arm.

    Attributes:
        seconds: from its start to its last token.
        tokens: output tokens.
        full_seconds: from its start, as long as at least B requests were not finished.
        full_tokens: output tokens in that time.
        e2e: of each request from when it was due to its last token, seconds.

    """

    seconds: float
    tokens: int
    full_seconds: float
    full_tokens: int
    e2e: Sequence[float]


def serve(
    engine: Engine,
    jobs: Sequence[Job],
    admission: Admission,
    batch: int,
    *,
    due: Seconds | None = None,
    clock: Clock | None = None,
) -> Served:
    """Drive the engine until it has served all jobs.

    Args:
        engine: with `batch` slots, idle.
        jobs: in the order in which they come.
        admission: the arm.
        batch: B.
        due: when each comes, seconds since the start; None: from 2 B clients.
        clock: None: the one on the wall.

    """
    return _Round(engine, jobs, admission, batch, due, clock or Wall()).serve()


class _Round:
    def __init__(
        self,
        engine: Engine,
        jobs: Sequence[Job],
        admission: Admission,
        batch: int,
        due: Seconds | None,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._jobs = jobs
        self._admission = admission
        self._batch = batch
        self._clients = len(jobs) if due is not None else 2 * batch
        self._due = due if due is not None else np.zeros(len(jobs))
        self._tokens = np.zeros(len(jobs), dtype=np.int64)
        self._ended = np.zeros(len(jobs))
        self._added = self._finished = 0
        self._full = (0.0, 0)
        self._start = 0.0

    def serve(self) -> Served:
        self._start = self._clock.now()
        while self._finished < len(self._jobs):
            self._admit()
            if self._added > self._finished:
                self._step()
            else:
                self._clock.sleep(max(0.0, self._due[self._added] - self._now()))
        self._check()
        return Served(
            seconds=float(self._ended.max()),
            tokens=int(self._tokens.sum()),
            full_seconds=self._full[0],
            full_tokens=self._full[1],
            e2e=(self._ended - self._due).tolist(),
        )

    def _now(self) -> float:
        return self._clock.now() - self._start

    def _admit(self) -> None:
        in_engine = self._added - self._finished
        come = int(np.searchsorted(self._due, self._now(), side="right"))
        ready = min(come - self._added, self._clients - in_engine)
        for _ in range(self._admission(ready, in_engine, self._batch)):
            self._engine.add(self._added, self._jobs[self._added])
            self._added += 1

    def _step(self) -> None:
        full = len(self._jobs) - self._finished >= self._batch
        outputs = self._engine.step()
        now = self._now()
        for index, tokens, last in outputs:
            self._tokens[index] += tokens
            if last:
                self._ended[index] = now
                self._finished += 1
        if full:
            self._full = (now, int(self._tokens.sum()))

    def _check(self) -> None:
        planned = [job.output_tokens for job in self._jobs]
        if self._tokens.tolist() != planned:
            raise RuntimeError(
                f"the engine made {self._tokens.sum()} tokens of {sum(planned)} planned: "
                "the arms cannot be compared"
            )


# -- rounds in pairs


@dataclass(frozen=True)
class Pair:
    """The same requests served by both arms, and the bound of their lengths."""

    static: Served
    continuous: Served
    bound: float

    @property
    def throughput(self) -> tuple[float, float]:
        """Tokens per second: continuous while all slots could be taken, static."""
        continuous, static = self.continuous, self.static
        return continuous.full_tokens / continuous.full_seconds, static.tokens / static.seconds

    @property
    def whole(self) -> tuple[float, float]:
        """Requests per second of the whole round: continuous, static."""
        continuous, static = self.continuous, self.static
        return len(continuous.e2e) / continuous.seconds, len(static.e2e) / static.seconds


@dataclass(frozen=True)
class Ratio:
    """Continuous / static, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Compared:
    """One number of both arms."""

    continuous: float
    static: float
    ratio: Ratio


def compared(pairs: Sequence[tuple[float, float]]) -> Compared:
    """Medians of (continuous, static) over pairs of rounds, and of their ratios."""
    continuous, static = np.median(pairs, axis=0)
    ratio = float(np.median([a / b for a, b in pairs]))
    interval = bootstrap.paired_interval(pairs)
    return Compared(float(continuous), float(static), Ratio(ratio, *interval))


def pooled(continuous: Seconds, static: Seconds, statistic: bootstrap.Statistic) -> Compared:
    """A statistic over the requests of all rounds; the bootstrap draws whole pairs of rounds.

    Args:
        continuous: (rounds, requests).
        static: the same requests.
        statistic: of the last axis.

    """
    chosen = np.random.default_rng(0).integers(0, len(static), (DRAWS, len(static)))
    a, b = (statistic(arm[chosen].reshape(DRAWS, -1)) for arm in (continuous, static))
    low, high = np.percentile(a / b, (2.5, 97.5))
    found, base = (float(statistic(arm.reshape(1, -1))[0]) for arm in (continuous, static))
    return Compared(found, base, Ratio(found / base, float(low), float(high)))


@dataclass(frozen=True)
class Cell:
    """One workload at one B: pairs of rounds in closed loop, and in open loop at a rate."""

    workload: Workload
    batch: int
    closed: Sequence[Pair]
    rate: float
    open: Sequence[Pair]

    @property
    def bound(self) -> float:
        """Of the very lengths: the median of the rounds."""
        return float(np.median([pair.bound for pair in self.closed]))

    @property
    def above(self) -> bool:
        """The throughput ratio is above the bound, round for round, and not by chance."""
        shares = [(c / s, pair.bound) for pair in self.closed for c, s in [pair.throughput]]
        return compared(shares).ratio.low > 1 + NOISE

    @property
    def throughput(self) -> Compared:
        """Tokens per second."""
        return compared([pair.throughput for pair in self.closed])

    @property
    def whole(self) -> Compared:
        """Requests per second of the whole rounds."""
        return compared([pair.whole for pair in self.closed])

    @property
    def latencies(self) -> dict[str, Compared]:
        """By statistic of E2E, in seconds; no p99 of too few requests."""
        continuous = np.array([pair.continuous.e2e for pair in self.open])
        static = np.array([pair.static.e2e for pair in self.open])
        return {
            name: pooled(continuous, static, statistic)
            for name, statistic in STATISTICS.items()
            if name != "p99" or static.size >= MIN_FOR_P99
        }

    def dump(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "workload": self.workload.name,
            "batch": self.batch,
            "length_scales": self.workload.scales,
            "mean_prompt_tokens": float(self.workload.prompts.mean()),
            "mean_output_tokens": float(self.workload.outputs.mean()),
            "bound": {"run": self.bound, "lengths": bound(self.workload.outputs, self.batch)},
            "above_bound": self.above,
            "closed": {
                "tokens_per_s": dataclasses.asdict(self.throughput),
                "requests_per_s_of_whole_rounds": dataclasses.asdict(self.whole),
                "rounds": [dataclasses.asdict(pair) for pair in self.closed],
            },
            "open": {
                "requests_per_s": self.rate,
                "e2e_s": {n: dataclasses.asdict(found) for n, found in self.latencies.items()},
                "rounds": [dataclasses.asdict(pair) for pair in self.open],
            },
        }
