"""The simulator against vLLM: the same requests at the same times to both, figures side by side.

The capacity of each shape of lengths is measured first: requests per second while all slots are
taken. Then come Poisson arrivals at shares of it. The engine model gets the arrivals as they were
handed over, the lengths, the engine's settings and a calibration, and nothing of the run itself.

Besides the figures there is the same for the steps alone: the time that the calibration gives to
the very steps that the engine made, over the time that they took. It tells the terms (and a machine
whose pace has changed since) from the scheduler: what is off there is off everywhere.
"""

import argparse
import asyncio
import dataclasses
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtest import arrivals, files, lengths, machine, options
from loadtest.simulator import calibration, fit, records
from loadtest.simulator.calibration import Calibration
from loadtest.simulator.live import Live, Lived, LiveSettings, Planned, random_prompt, started
from loadtest.simulator.replay import Asked, Figures, replay
from loadtest.simulator.text import aligned

BURST: Final = 6
"""Batches that a measurement of capacity takes."""
BOUNDS: Final[Mapping[str, float]] = {
    "ttft": 0.20,
    "itl": 0.10,
    "e2e": 0.10,
    "tokens_per_s": 0.05,
}
"""How far off a prediction may be."""
FACTOR: Final = 3.0
"""Preemptions of the same order: up to so many times more or fewer; below `FEW`, anything."""
FEW: Final = 10


@dataclass(frozen=True)
class Settings:
    """The options: see `add_arguments`."""

    calibration: Path
    model: Path
    shapes: Sequence[str] = ("fixed", "exponential")
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
        return cls(**{f.name: getattr(arguments, f.name) for f in dataclasses.fields(cls)})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--calibration", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--shapes", nargs="+", choices=("fixed", "exponential"), help="of prompts and answers"
    )
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
    defaults = {f.name: f.default for f in dataclasses.fields(Settings) if f.name in _OPTIONAL}
    parser.set_defaults(**defaults)


_OPTIONAL = frozenset(f.name for f in dataclasses.fields(Settings)) - {"calibration", "model"}


@dataclass(frozen=True)
class Run:
    """One load: what was predicted and what was measured.

    Attributes:
        rate: requests per second.
        steps: the time that the calibration gives to the steps that were made, over theirs.
        waited: share of the time for which the engine had no core, which others had.
        late: how late requests were handed over, p99 in seconds.
        outside: what was more than the calibration has seen.

    """

    shape: str
    load: float
    rate: float
    requests: int
    predicted: Figures
    measured: Figures
    steps: float
    waited: float
    late: float
    outside: Sequence[str]


def main(arguments: argparse.Namespace) -> int:
    """Measure, predict, print; 1 when a prediction is further off than it may be."""
    settings = Settings.of(arguments)
    known = calibration.load(settings.calibration)
    runs = asyncio.run(_all(settings, known))
    path = files.create(settings.out, "validation", ".json")
    path.write_text(json.dumps(_dump(settings, known, runs)) + "\n", encoding="utf-8")
    print(render(runs))
    print(path)
    return int(any(not _within(name, run) for run in runs for name in NAMES))


def _dump(settings: Settings, known: Calibration, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "validation",
        "settings": json.loads(json.dumps(dataclasses.asdict(settings), default=str)),
        "calibration": known.dump(),
        "environment": machine.facts("numpy"),
        "runs": [dataclasses.asdict(run) for run in runs],
    }


async def _all(settings: Settings, known: Calibration) -> list[Run]:
    async with started(_live(settings, known)) as live:
        bench = _Bench(settings, known, live)
        return [run async for run in bench.runs()]


def _live(settings: Settings, known: Calibration) -> LiveSettings:
    """The engine as it was calibrated, but for the blocks."""
    engine = known.engine
    return LiveSettings(
        settings.model,
        engine["max_num_seqs"],
        engine["max_num_batched_tokens"],
        engine["max_model_len"],
        settings.kv_blocks,
        engine["kv_cache_gib"],
        engine["threads"],
    )


class _Bench:
    def __init__(self, settings: Settings, known: Calibration, live: Live) -> None:
        self._settings = settings
        self._known = known
        self._live = live

    async def runs(self) -> AsyncIterator[Run]:
        shapes = self._settings.shapes
        capacities = {shape: await self._capacity(shape) for shape in shapes}
        for number in range(self._settings.rounds):
            for shape in shapes:
                for load in self._settings.loads:
                    run = await self._run(shape, load, capacities[shape], number)
                    print(progress(run), flush=True)
                    yield run

    async def _capacity(self, shape: str) -> float:
        """Requests per second while all slots are taken."""
        dice = np.random.default_rng([self._settings.seed, 0])
        slots = self._live.engine.max_num_seqs
        for _ in range(2):  # the first is to warm up
            plan = self._plan(shape, np.zeros(BURST * slots), dice)
            lived = await self._live.serve(plan)
        full = sorted(one.times[-1] for one in lived)[-slots]
        times = np.concatenate([one.times for one in lived])
        tokens = int((times <= full).sum())
        mean = float(np.mean([one.output for one in plan]))
        return tokens / (full - min(one.sent for one in lived)) / mean

    async def _run(self, shape: str, load: float, capacity: float, number: int) -> Run:
        rate = load * capacity
        dice = np.random.default_rng([self._settings.seed, number, round(1000 * load)])
        times = arrivals.poisson(rate, self._settings.seconds, dice)
        plan = self._plan(shape, times, dice)
        self._live.take()
        waited = self._live.waited
        lived = await self._live.serve(plan)
        steps, waited = self._live.take(), self._live.waited - waited
        found = self._replay(lived)
        return Run(
            shape=shape,
            load=load,
            rate=rate,
            requests=len(plan),
            predicted=found.figures,
            measured=figures(lived, sum(record.preempted for record in steps)),
            steps=self._pace(steps),
            waited=waited / (max(one.times[-1] for one in lived) - lived[0].sent),
            late=float(np.percentile([one.sent - one.due for one in lived], 99)),
            outside=list(self._known.box.outside(found.most)),
        )

    def _plan(self, shape: str, times: Any, dice: np.random.Generator) -> list[Planned]:
        prompts, outputs = (
            lengths.draw(f"{shape}:{mean}", len(times), dice)
            for mean in (self._settings.prompt_tokens, self._settings.output_tokens)
        )
        most = self._known.engine["max_model_len"] // 2
        return [
            Planned(
                at, random_prompt(dice, self._live.vocabulary, min(prompt, most)), min(out, most)
            )
            for at, prompt, out in zip(
                times.tolist(), prompts.tolist(), outputs.tolist(), strict=True
            )
        ]

    def _replay(self, lived: Sequence[Lived]) -> Any:
        start = min(one.sent for one in lived)
        asked = [
            Asked(one.sent - start, len(one.planned.prompt), one.planned.output) for one in lived
        ]
        return replay(asked, self._live.engine, self._known.coefficients)

    def _pace(self, steps: Sequence[records.Record]) -> float:
        """What the calibration gives to the steps that were made, over what they took."""
        observed = list(records.observations(steps))
        if not observed:
            return math.nan
        return 1 + fit.errors(self._known.fit.values, observed).total


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


# -- what is printed

NAMES: Final = (*BOUNDS, "preemptions")
_LABELS: Final[Mapping[str, tuple[str, Callable[[float], float]]]] = {
    "ttft": ("TTFT p50, ms", lambda seconds: 1000 * seconds),
    "itl": ("ITL p50, ms", lambda seconds: 1000 * seconds),
    "e2e": ("E2E p50, ms", lambda seconds: 1000 * seconds),
    "tokens_per_s": ("tokens/s", float),
    "preemptions": ("preemptions", float),
}


def _within(name: str, run: Run) -> bool:
    predicted, measured = (float(getattr(of, name)) for of in (run.predicted, run.measured))
    if name in BOUNDS:
        return bool(abs(predicted / measured - 1) <= BOUNDS[name]) or math.isnan(measured)
    few = max(predicted, measured) < FEW
    return few or 1 / FACTOR <= (predicted + 1) / (measured + 1) <= FACTOR


def progress(run: Run) -> str:
    """A line for each as it is done."""
    missed = [name for name in NAMES if not _within(name, run)]
    return f"{run.shape}, {run.load:.0%}: {'missed ' + ', '.join(missed) if missed else 'holds'}"


def render(runs: Sequence[Run]) -> str:
    """All runs, and how many predictions hold."""
    rows: list[Sequence[str]] = [
        ("lengths, load", "figure", "predicted", "measured", "ratio", ""),
        *(row for run in runs for row in _rows(run)),
    ]
    return "\n".join([aligned(rows), "", *_notes(runs)])


def _rows(run: Run) -> Iterator[Sequence[str]]:
    title = f"{run.shape}, {run.load:.0%} ({run.rate:.3g}/s, n = {run.requests})"
    for name in NAMES:
        label, scaled = _LABELS[name]
        predicted, measured = (scaled(getattr(of, name)) for of in (run.predicted, run.measured))
        ratio = predicted / measured if measured else math.nan
        verdict = "" if _within(name, run) else "MISS"
        yield title, label, f"{predicted:.4g}", f"{measured:.4g}", f"{ratio:.3f}", verdict
        title = ""
    yield "", "time of its steps", "", "", f"{run.steps:.3f}", f"waited {run.waited:.1%}"


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    for name in NAMES:
        held = sum(_within(name, run) for run in runs)
        bound = f"within {BOUNDS[name]:.0%}" if name in BOUNDS else "of the same order"
        yield f"{_LABELS[name][0]}: {held} of {len(runs)} {bound}"
    outside = sorted({name for run in runs for name in run.outside})
    if outside:
        yield f"beyond what was calibrated: {', '.join(outside)}"
    late = 1000 * max(run.late for run in runs)
    yield f"requests were handed over late by up to {late:.1f} ms (p99)"
