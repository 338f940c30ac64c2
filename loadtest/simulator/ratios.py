"""Static against continuous batching: what the simulator says beside what `batching` measured.

The rounds of the measurement are drawn again with its seed: the same lengths and arrivals. The
engine model serves them under both ways of admission, in the very loop that drove vLLM, and the
ratios are worked out in the same way. The open loop is at the same share of what the static arm
serves, as it was there: of the model's own, for an engine that is driven without a front end is not
as fast as the one that was calibrated.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtest import arms, batching
from loadtest.arms import ARMS, Cell, Pair, Served, Workload
from loadtest.errors import UsageError
from loadtest.lengths import Lengths
from loadtest.simulator import calibration
from loadtest.simulator.engine import Engine, EngineSettings
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import Coefficients, StepTime
from loadtest.simulator.ticks import seconds, ticks
from loadtest.text import aligned

BOUND: Final = 0.10
"""How far off a ratio may be."""
BLOCK: Final = 16


class Model:
    """The engine model as the arms drive it, and its clock."""

    def __init__(self, settings: EngineSettings, coefficients: Coefficients) -> None:
        self._engine = Engine(settings, StepTime(coefficients))

    def add(self, index: int, job: arms.Job) -> None:
        """See `arms.Engine`."""
        made = Job(index, len(job.prompt), job.output_tokens, self._engine.now)
        self._engine.add(made, self._engine.now)

    def step(self) -> list[tuple[int, int, bool]]:
        """See `arms.Engine`."""
        engine = self._engine
        _, ended = engine.step(engine.now + 1)
        lasting = [(job.number, 1, False) for job in engine.running if not job.prefilling]
        return lasting + [(job.number, 1, True) for job in ended]

    def now(self) -> float:
        """See `arms.Clock`."""
        return seconds(self._engine.now)

    def sleep(self, time: float) -> None:
        # One more, so that no rounding leaves it just before what it slept for.
        self._engine.now += ticks(time) + 1


@dataclass(frozen=True)
class Compared:
    """A ratio continuous / static.

    Attributes:
        interval: 95 %, of the measurement.

    """

    workload: str
    batch: int
    figure: str
    simulated: float
    measured: float
    interval: tuple[float, float]

    @property
    def off(self) -> float:
        return self.simulated / self.measured - 1

    @property
    def verdict(self) -> str:
        if abs(self.off) <= BOUND:
            return ""
        low, high = self.interval
        return "MISS, within its interval" if low <= self.simulated <= high else "MISS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--batching", type=Path, required=True, metavar="FILE", help="its result")
    parser.add_argument("--calibration", type=Path, required=True, metavar="FILE")


def main(arguments: argparse.Namespace) -> int:
    """Compare; 1 when a ratio is further off than it may be."""
    measured = _read(arguments.batching)
    coefficients = calibration.load(arguments.calibration).coefficients
    found = [one for cell in compare(measured, coefficients) for one in cell]
    print(render(found))
    return int(any(abs(one.off) > BOUND for one in found))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != "batching" or content["schema"] != batching.SCHEMA:
            raise UsageError(f"{path}: not a result of `batching` of schema {batching.SCHEMA}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a result of `batching`: {error!r}") from None
    return dict(content)


def compare(
    measured: Mapping[str, Any], coefficients: Coefficients
) -> Iterator[Sequence[Compared]]:
    """The ratios of each cell."""
    known = {field.name for field in dataclasses.fields(batching.Settings)}
    given = {name: value for name, value in measured["settings"].items() if name in known}
    given["trace"] = [Path(one) for one in given["trace"]]
    settings = batching.Settings(**given)
    drawn = {one.name: one for one in batching.workloads(settings)}
    for cell in measured["cells"]:
        workload = drawn[cell["workload"]]
        bench = _Bench(settings, coefficients, workload, cell["batch"])
        yield list(_ratios(cell, bench.cell()))


def _ratios(measured: Mapping[str, Any], simulated: Cell) -> Iterator[Compared]:
    closed, opened = measured["closed"], measured["open"]
    pairs = [
        ("tokens/s", simulated.throughput, closed["tokens_per_s"]),
        ("whole rounds", simulated.whole, closed["requests_per_s_of_whole_rounds"]),
        *(
            (f"E2E {name}, open loop", found, opened["e2e_s"][name])
            for name, found in simulated.latencies.items()
            if name in opened["e2e_s"] and name != "p99"
        ),
    ]
    for figure, ours, theirs in pairs:
        found = arms.Ratio(**theirs["ratio"])
        yield Compared(
            simulated.workload.name,
            simulated.batch,
            figure,
            ours.ratio.value,
            found.value,
            (found.low, found.high),
        )


class _Bench:
    def __init__(
        self,
        settings: batching.Settings,
        coefficients: Coefficients,
        workload: Workload,
        batch: int,
    ) -> None:
        self._settings = settings
        self._coefficients = coefficients
        self._workload = workload
        self._batch = batch

    def cell(self) -> Cell:
        rounds = self._settings.rounds
        closed = [self._pair(number, None) for number in range(rounds)]
        rate = arms.LOAD * float(np.median([pair.whole[1] for pair in closed]))
        opened = [self._pair(rounds + number, rate) for number in range(-(-rounds // 2))]
        return Cell(self._workload, self._batch, closed, rate, opened)

    def _pair(self, number: int, rate: float | None) -> Pair:
        dice = batching.dice_of(self._settings, self._workload, self._batch, number)
        count = batching.requests(self._settings, self._batch)
        prompts, outputs, due = batching.drawn(self._workload, count, rate, dice)
        jobs = [
            arms.Job(range(prompt), output)
            for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True)
        ]
        served: dict[str, Served] = {}
        for name, admission in ARMS.items():
            model = Model(self._engine(prompts, outputs), self._coefficients)
            served[name] = arms.serve(model, jobs, admission, self._batch, due=due, clock=model)
        return Pair(**served, bound=arms.bound_of_run(outputs, self._batch))

    def _engine(self, prompts: Lengths, outputs: Lengths) -> EngineSettings:
        """Room for all, as in the measurement."""
        longest = int((prompts + outputs).max())
        return EngineSettings(
            max_num_seqs=self._batch,
            max_num_batched_tokens=self._batch * int(self._workload.prompts.max()),
            kv_blocks=self._batch * (longest // BLOCK + 1),
            block_size=BLOCK,
        )


def render(found: Sequence[Compared]) -> str:
    """All ratios, and how many hold."""
    rows: list[Sequence[str]] = [
        ("continuous / static", "B", "", "simulated", "measured [95 %]", "off", ""),
        *(
            (
                one.workload,
                str(one.batch),
                one.figure,
                f"{one.simulated:.2f}",
                f"{one.measured:.2f} [{one.interval[0]:.2f}, {one.interval[1]:.2f}]",
                f"{one.off:+.1%}",
                one.verdict,
            )
            for one in found
        ),
    ]
    held = sum(abs(one.off) <= BOUND for one in found)
    return "\n".join([aligned(rows), "", f"{held} of {len(found)} within {BOUND:.0%}"])
