"""Loads that a fit has not seen: the real engine and the model side by side."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadtest import arrivals
from loadtest.simulator.engine import GAP, EngineSettings
from loadtest.simulator.fast_engine import FastEngine
from loadtest.simulator.job import Job
from loadtest.simulator.real_engine import RealEngine
from loadtest.simulator.step_time import StepTime
from loadtest.simulator.text import aligned
from loadtest.simulator.ticks import PER_SECOND, seconds, ticks

LOADS = (0.5, 0.8, 1.1)
LIMITS = {"TTFT p50": 0.2, "ITL p50": 0.1, "E2E p50": 0.1, "tokens/s": 0.05}
"""How far a model may be off."""


@dataclass(frozen=True)
class Shape:
    """Exponential lengths of these means, at least 1 and at most so long that both fit."""

    name: str
    prompt: int
    output: int

    def draw(self, count: int, longest: int, dice: np.random.Generator) -> list[tuple[int, int]]:
        prompts = np.clip(dice.exponential(self.prompt, count), 1, longest // 2).astype(int)
        outputs = np.clip(dice.exponential(self.output, count), 1, longest // 2).astype(int)
        return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


SHAPES = (Shape("chat", 64, 48), Shape("long prompts", 192, 12))


@dataclass(frozen=True)
class Measured:
    """Of one load."""

    ttft: float
    itl: float
    e2e: float
    rate: float
    preemptions: int


def capacity(shape: Shape, given: EngineSettings, step: StepTime, longest: int) -> float:
    """Requests per second with a queue that is never empty, by the model."""
    asks = shape.draw(400, longest, np.random.default_rng(0))
    jobs = [Job(number, *ask) for number, ask in enumerate(asks)]
    engine = _played(jobs, given, step)
    return len(jobs) / seconds(engine.now)


def load_of(
    shape: Shape, rate: float, duration_s: float, longest: int, dice: np.random.Generator
) -> list[Job]:
    """Poisson arrivals."""
    times = arrivals.poisson(rate, duration_s, dice).tolist()
    asks = shape.draw(len(times), longest, dice)
    return [
        Job(number, *ask, ticks(at))
        for number, (at, ask) in enumerate(zip(times, asks, strict=True))
    ]


def simulated(jobs: Sequence[Job], given: EngineSettings, step: StepTime) -> Measured:
    """By the model."""
    jobs = [replace(job) for job in jobs]
    engine = _played(jobs, given, step)
    ttfts = [seconds(job.first - job.arrived) for job in jobs if job.first is not None]
    e2es = [seconds(job.ended - job.arrived) for job in jobs if job.ended is not None]
    tokens = sum(job.output for job in jobs)
    return Measured(
        float(np.median(ttfts)),
        _median_gap(engine),
        float(np.median(e2es)),
        tokens / seconds(engine.now),
        engine.preemptions,
    )


def _played(jobs: Sequence[Job], given: EngineSettings, step: StepTime) -> FastEngine:
    engine = FastEngine(given, step)
    for job in jobs:
        while engine.now < job.arrived and not engine.idle:
            engine.run(job.arrived)
        engine.add(job, job.arrived)
    while not engine.idle:
        engine.run(10**30)
    return engine


def _median_gap(engine: FastEngine) -> float:
    half, seen = engine.gaps.total() / 2, 0
    for place in sorted(engine.gaps):
        seen += engine.gaps[place]
        if seen >= half:
            return math.exp((place + 0.5) * GAP) / PER_SECOND
    return math.nan


def real(engine: RealEngine, jobs: Sequence[Job], dice: np.random.Generator) -> Measured:
    """On the engine, each request handed over at its time."""
    prompts = [dice.integers(0, engine.vocabulary, job.prompt).tolist() for job in jobs]
    due = [seconds(job.arrived) for job in jobs]
    times: list[list[float]] = [[] for _ in jobs]
    preempted, added, ended = engine.preemptions, 0, 0
    start = time.perf_counter()
    while ended < len(jobs):
        now = time.perf_counter() - start
        while added < len(jobs) and due[added] <= now:
            engine.add(added, prompts[added], jobs[added].output)
            added += 1
        if engine.idle:
            time.sleep(max(0.0, due[added] - now))
            continue
        found = engine.step()
        now = time.perf_counter() - start
        for number, tokens, last in found:
            times[number] += [now] * tokens
            ended += last
    return _measured(due, times, engine.preemptions - preempted)


def _measured(due: Sequence[float], times: Sequence[Sequence[float]], preempted: int) -> Measured:
    pairs = list(zip(due, times, strict=True))
    gaps: NDArray[np.float64] = np.concatenate([np.diff(one) for one in times])
    return Measured(
        float(np.median([one[0] - at for at, one in pairs])),
        float(np.median(gaps)) if len(gaps) else math.nan,
        float(np.median([one[-1] - at for at, one in pairs])),
        sum(map(len, times)) / max(one[-1] for one in times),
        preempted,
    )


@dataclass(frozen=True)
class Compared:
    """One load on both."""

    shape: Shape
    load: float
    rate: float
    requests: int
    real: Measured
    model: Measured

    def row(self) -> tuple[str, ...]:
        """With the model's error, and `!` where it is over the limit."""
        name = f"{self.shape.name}, {self.load:.0%} ({self.rate:.1f}/s, {self.requests})"
        cells = []
        for one, model, limit in zip(
            _figures(self.real), _figures(self.model), LIMITS.values(), strict=True
        ):
            error = model / one - 1
            over = "!" if abs(error) > limit else ""
            cells.append(f"{_short(one)} {_short(model)} {error:+.0%}{over}")
        return (name, *cells, f"{self.real.preemptions} {self.model.preemptions}")


def _figures(found: Measured) -> tuple[float, ...]:
    return 1000 * found.ttft, 1000 * found.itl, 1000 * found.e2e, found.rate


def _short(value: float) -> str:
    return f"{value:.4g}" if value < 10_000 else f"{value:.0f}"


def compare(
    engine: RealEngine, given: EngineSettings, step: StepTime, longest: int, duration_s: float
) -> Iterator[Compared]:
    """Each shape at each load."""
    for shape in SHAPES:
        most = capacity(shape, given, step, longest)
        for load in LOADS:
            dice = np.random.default_rng([len(shape.name), round(100 * load)])
            jobs = load_of(shape, load * most, duration_s, longest, dice)
            model = simulated(jobs, given, step)
            yield Compared(shape, load, load * most, len(jobs), real(engine, jobs, dice), model)


def table(found: Sequence[Compared]) -> str:
    """Real, model, error of each."""
    heads = ("TTFT p50, ms", "ITL p50, ms", "E2E p50, ms", "tokens/s", "preemptions")
    head = ("real, model, error", *heads)
    within = ", ".join(f"{name} {limit:.0%}" for name, limit in LIMITS.items())
    return f"{aligned([head, *(one.row() for one in found)])}\n! further off than {within}"
