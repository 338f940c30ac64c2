"""The same requests through the engine model: what it says of their times."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.simulator.engine import GAP, EngineSettings
from loadtest.simulator.fast_engine import FastEngine
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import Coefficients, StepTime, Work
from loadtest.simulator.ticks import Ticks, seconds, ticks


@dataclass(frozen=True)
class Asked:
    """A request: seconds at which it comes, and tokens."""

    at: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Figures:
    """Of a run. Medians in seconds; no ITL where every answer is one token.

    Attributes:
        tokens_per_s: output tokens over the time from the first arrival to the last token.

    """

    ttft: float
    itl: float
    e2e: float
    tokens_per_s: float
    preemptions: int


@dataclass(frozen=True)
class Replayed:
    """What the model says, and the most work of one step, for the box of a fit."""

    figures: Figures
    most: Work


def replay(
    asked: Sequence[Asked], settings: EngineSettings, coefficients: Coefficients
) -> Replayed:
    """Simulate requests, in order of arrival."""
    engine = FastEngine(settings, StepTime(coefficients))
    jobs = [Job(number, one.prompt, one.output, ticks(one.at)) for number, one in enumerate(asked)]
    for due, job in sorted(
        ((_due(job, coefficients), job) for job in jobs), key=lambda one: one[0]
    ):
        while engine.now < due and not engine.idle:
            engine.run(due)
        engine.add(job, due)
    while not engine.idle:
        engine.run(engine.now + ticks(3600.0))
    return Replayed(_figures(jobs, engine, coefficients.emit), engine.most)


def _due(job: Job, coefficients: Coefficients) -> Ticks:
    """When the engine can begin with it."""
    return job.arrived + ticks(coefficients.accept + coefficients.accept_token * job.prompt)


def _figures(jobs: Sequence[Job], engine: FastEngine, emit: float) -> Figures:
    first = np.array([seconds(job.first - job.arrived) for job in jobs if job.first is not None])
    last = np.array([seconds(job.ended - job.arrived) for job in jobs if job.ended is not None])
    span = seconds(max(job.ended or 0 for job in jobs) - jobs[0].arrived) + emit
    return Figures(
        ttft=float(np.median(first)) + emit,
        itl=middle(engine.gaps),
        e2e=float(np.median(last)) + emit,
        tokens_per_s=sum(job.output for job in jobs) / span,
        preemptions=engine.preemptions,
    )


def middle(gaps: Counter[int]) -> float:
    """The median of gaps that were counted by their logarithm in ticks, in seconds."""
    half, seen = sum(gaps.values()) / 2, 0
    for place in sorted(gaps):
        seen += gaps[place]
        if seen >= half:
            return math.exp((place + 0.5) * GAP) / ticks(1.0)
    return math.nan


def capacity(
    settings: EngineSettings, coefficients: Coefficients, lengths: Iterable[tuple[int, int]]
) -> float:
    """Requests per second with all slots taken, of a burst of (prompt, output) tokens."""
    burst = [Asked(0.0, prompt, output) for prompt, output in lengths]
    figures = replay(burst, settings, coefficients).figures
    return figures.tokens_per_s * len(burst) / sum(one.output for one in burst)
