"""The simulator against vLLM: the same requests at the same times to both, figures side by side.

The capacity of each shape of lengths is measured first: output tokens per second while all slots
are taken and are filled one by one. Then come Poisson arrivals whose answers are shares of it, in
each run as many as that takes: near the capacity a queue is as sensitive to the load as to the
pace. The engine model gets the arrivals as they were handed over, the lengths, the engine's
settings and a calibration, and nothing of the run itself.

Where no calibration is given the grids of `calibrate` are gone through before and after each run,
and the run is predicted from these two rounds: on a machine that others use too, the pace of one
minute is not that of the next. With a calibration, what has changed since is part of the error.

Besides the figures there is the same for the steps alone: the time that the calibration gives to
the very steps that the engine made, over the time that they took. It tells the terms (and a machine
whose pace has changed since) from the scheduler: what is off there is off everywhere.
"""

import argparse
import asyncio
import dataclasses
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtest import arrivals, files, lengths, machine, options
from loadtest.simulator import calibrate, calibration, fit, records
from loadtest.simulator.calibrate import Bench, Round
from loadtest.simulator.calibration import Calibration
from loadtest.simulator.live import Live, Lived, Planned, random_prompt, started
from loadtest.simulator.records import Record
from loadtest.simulator.replay import Asked, Figures, Replayed, replay
from loadtest.simulator.step_time import Coefficients
from loadtest.simulator.validation import NAMES, Run, progress, render, within

WARM_UP = 4
"""Batches before a measurement of capacity."""
OVER = 2.0
"""Times what those reached is sent to measure it."""
SHAPES: Final = ("fixed", "exponential")


@dataclass(frozen=True)
class Settings:
    """The options: see `add_arguments`."""

    grid: calibrate.Settings
    calibration: Path | None = None
    shapes: Sequence[str] = SHAPES
    loads: Sequence[float] = (0.5, 0.8, 1.1)
    prompt_tokens: int = 64
    output_tokens: int = 64
    seconds: float = 20.0
    rounds: int = 1
    kv_blocks: int | None = None
    seed: int = 1
    out: Path = options.RESULTS

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Settings":
        """From a command line."""
        grid = {name: getattr(arguments, name) for name in _ENGINE}
        own = {f.name: getattr(arguments, f.name) for f in dataclasses.fields(cls)[1:]}
        return cls(calibrate.Settings(**grid), **own)


_ENGINE: Final = (
    *("model", "max_num_seqs", "max_num_batched_tokens"),
    *("max_model_len", "kv_cache", "threads"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="default: made besides, round by round"
    )
    calibrate.add_engine(parser)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="of prompts and answers")
    parser.add_argument(
        "--loads", type=options.positive, nargs="+", metavar="X", help="shares of the capacity"
    )
    for name in ("prompt", "output"):
        parser.add_argument(f"--{name}-tokens", type=options.count, metavar="N", help="mean")
    parser.add_argument(
        "--seconds", type=options.positive, metavar="S", help="in which the requests of a run come"
    )
    parser.add_argument("--rounds", type=options.count, metavar="N", help="of all runs")
    parser.add_argument(
        "--kv-blocks", type=options.count, metavar="N", help="few, so that there are preemptions"
    )
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {options.RESULTS}")
    own = {f.name: f.default for f in dataclasses.fields(Settings)[1:]}
    grid = {name: getattr(calibrate.Settings, name) for name in _ENGINE}
    parser.set_defaults(**grid, **own)


def main(arguments: argparse.Namespace) -> int:
    """Measure, predict, print; 1 when a prediction is further off than it may be."""
    settings = Settings.of(arguments)
    given = settings.calibration
    known = None if given is None else calibration.load(given)
    runs = asyncio.run(_all(settings, known))
    path = files.create(settings.out, "validation", ".json")
    path.write_text(json.dumps(_dump(settings, known, runs)) + "\n", encoding="utf-8")
    print(render(runs))
    print(path)
    return int(any(not within(name, run) for run in runs for name in NAMES))


def _dump(settings: Settings, known: Calibration | None, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "validation",
        "settings": json.loads(json.dumps(dataclasses.asdict(settings), default=str)),
        "calibration": known and known.dump(),
        "environment": machine.facts("numpy"),
        "runs": [dataclasses.asdict(run) for run in runs],
    }


async def _all(settings: Settings, known: Calibration | None) -> list[Run]:
    given = dataclasses.replace(settings.grid.live, kv_blocks=settings.kv_blocks)
    async with started(given) as live:
        return [run async for run in Trial(settings, known, live).runs()]


@dataclass(frozen=True)
class Load:
    """A run that was measured, before it is predicted."""

    shape: str
    load: float
    rate: float
    lived: Sequence[Lived]
    steps: Sequence[Record]
    waited: float


class Trial:
    """All runs on a started engine."""

    def __init__(self, settings: Settings, known: Calibration | None, live: Live) -> None:
        self._settings = settings
        self._known = known
        self._live = live
        self._bench = Bench(settings.grid, live)

    async def runs(self) -> AsyncIterator[Run]:
        shapes = self._settings.shapes
        if self._known is None:
            await self._bench.warm_up()
        capacities = {shape: await self._capacity(shape) for shape in shapes}
        before = await self._round()
        for number in range(self._settings.rounds):
            for shape in shapes:
                for share in self._settings.loads:
                    load = await self._load(shape, share, capacities[shape], number)
                    after = await self._round()
                    run = self._predicted(load, self._known or self._bench.fitted(before + after))
                    before = after
                    print(progress(run), flush=True)
                    yield run

    async def _round(self) -> list[Round]:
        return [] if self._known else [await self._bench.round()]

    async def _capacity(self, shape: str) -> float:
        """Output tokens per second while all slots are taken.

        A batch that comes at once would stay together when all lengths are equal, and be slower
        than the same requests one by one.
        """
        dice = np.random.default_rng([self._settings.seed, 0])
        slots, seconds = self._live.engine.max_num_seqs, self._settings.seconds
        burst = self._plan(np.zeros(WARM_UP * slots), *self._lengths(shape, WARM_UP * slots, dice))
        lived = await self._live.serve(burst)
        reached = len(burst) / (max(one.times[-1] for one in lived) - lived[0].sent)
        times = arrivals.poisson(OVER * reached, max(seconds / OVER, 2 * slots / reached), dice)
        plan = self._plan(times, *self._lengths(shape, len(times), dice))
        return rate_when_full(await self._live.serve(plan), slots)

    async def _load(self, shape: str, share: float, capacity: float, number: int) -> Load:
        dice = np.random.default_rng([self._settings.seed, number, round(1000 * share)])
        tokens = share * capacity * self._settings.seconds
        prompts, outputs = self._lengths(shape, math.ceil(tokens), dice)
        count = int(np.searchsorted(np.cumsum(outputs), tokens)) + 1
        times = arrivals.given(count, self._settings.seconds, dice)
        plan = self._plan(times, prompts[:count], outputs[:count])
        self._live.take()
        waited = self._live.waited
        lived = await self._live.serve(plan)
        took = max(one.times[-1] for one in lived) - lived[0].sent
        waited = (self._live.waited - waited) / took
        rate = count / self._settings.seconds
        return Load(shape, share, rate, lived, self._live.take(), waited)

    def _lengths(
        self, shape: str, count: int, dice: np.random.Generator
    ) -> tuple[lengths.Lengths, lengths.Lengths]:
        """Of prompts, and of answers."""
        most = self._settings.grid.max_model_len // 2
        prompts, outputs = (
            np.minimum(lengths.draw(f"{shape}:{mean}", count, dice), most)
            for mean in (self._settings.prompt_tokens, self._settings.output_tokens)
        )
        return prompts, outputs

    def _plan(
        self, times: arrivals.Times, prompts: lengths.Lengths, outputs: lengths.Lengths
    ) -> list[Planned]:
        dice = np.random.default_rng(self._settings.seed)
        return [
            Planned(at, random_prompt(dice, self._live.vocabulary, prompt), output)
            for at, prompt, output in zip(
                times.tolist(), prompts.tolist(), outputs.tolist(), strict=True
            )
        ]

    def _predicted(self, load: Load, known: Calibration) -> Run:
        steps = pace(load.steps, known)
        given = known.coefficients
        found = self._replay(load.lived, given)
        return Run(
            shape=load.shape,
            load=load.load,
            rate=load.rate,
            requests=len(load.lived),
            predicted=found.figures,
            at_pace=self._replay(load.lived, scaled(given, 1 / steps)).figures,
            measured=figures(load.lived, sum(record.preempted for record in load.steps)),
            steps=steps,
            waited=load.waited,
            late=float(np.percentile([one.sent - one.due for one in load.lived], 99)),
            outside=list(known.box.outside(found.most)),
        )

    def _replay(self, lived: Sequence[Lived], coefficients: Coefficients) -> Replayed:
        start = min(one.sent for one in lived)
        asked = [
            Asked(one.sent - start, len(one.planned.prompt), one.planned.output) for one in lived
        ]
        return replay(asked, self._live.engine, coefficients)


def rate_when_full(lived: Sequence[Lived], slots: int) -> float:
    """Output tokens per second from the end of the first batch until the last one is complete.

    From the first on as many as there are slots have come and all are taken; there are not enough
    requests left for them when fewer than that have not ended.

    Args:
        lived: requests that came faster than they could be served.
        slots: of the engine.

    """
    ends = sorted(one.times[-1] for one in lived)
    begin, full = ends[slots - 1], ends[-slots]
    times = np.concatenate([one.times for one in lived])
    return float(((begin < times) & (times <= full)).sum() / (full - begin))


def pace(steps: Sequence[Record], known: Calibration) -> float:
    """What a calibration gives to steps that were made, over what they took."""
    observed = list(records.observations(steps))
    return 1 + fit.errors(known.fit.values, observed).total if observed else math.nan


def scaled(given: Coefficients, factor: float) -> Coefficients:
    """All terms of a step times a factor; not the front end's."""
    return dataclasses.replace(given, **{name: factor * getattr(given, name) for name in fit.TERMS})


def figures(lived: Sequence[Lived], preemptions: int) -> Figures:
    """Of a run that was measured; from when requests were handed over."""
    start = min(one.sent for one in lived)
    gaps = [one.gaps for one in lived if len(one.times) > 1]
    return Figures(
        ttft=float(np.median([one.times[0] - one.sent for one in lived])),
        itl=float(np.median(np.concatenate(gaps))) if gaps else math.nan,
        e2e=float(np.median([one.times[-1] - one.sent for one in lived])),
        tokens_per_s=sum(len(one.times) for one in lived)
        / (max(one.times[-1] for one in lived) - start),
        preemptions=preemptions,
    )
