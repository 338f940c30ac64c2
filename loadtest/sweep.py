"""Goodput at several rates, for one or more servers in turn: how much of its best each keeps.

Each server is first measured in a closed loop; rates like `2x` are multiples of what the first one
can do, so that all servers see the same load. The rates are gone through in turn for all servers,
and all of them again in each round, so that a change of the machine's pace meets them alike.

Where answers are of any length, few long ones more or less move the requests per second, and on a
shared machine the pace of a step moves them too. What tells servers apart is how much of the batch
worked for requests that had their first token in time: tokens of those per second, times the time
that one takes, is the number of sequences that were decoded for them. It knows neither lengths nor
pace; a little more than the batch can be counted, for answers begin within the window and may end
after it.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtest import files, options, session, settings
from loadtest.errors import UsageError
from loadtest.options import Rate
from loadtest.result import Result
from loadtest.run import execute
from loadtest.search import LOADS, share_met
from loadtest.servers import Server
from loadtest.session import Execute
from loadtest.settings import Run
from loadtest.table import number, share
from loadtest.verdict import Grade

SCHEMA = 2
UNITS = {
    "requests": "requests/s",
    "output_tokens": "output tokens/s",
    "sequences": "sequences in the batch",
}
SWEEP = ("0.9x", "1x", "1.2x", "1.5x", "2x", "5x", "10x")


@dataclass(frozen=True)
class Cell:
    """One server at one rate."""

    server: str
    rate: Rate
    result: Result
    path: Path
    round: int = 0

    def goodput(self, unit: str = "requests") -> float:
        """Of requests that met every SLO: requests or output tokens per second, or sequences."""
        summary = self.result.summary
        if unit == "sequences":
            token_s = summary["latency_s"]["itl"]["mean"] or 0.0
            return float(summary["goodput"]["output_tokens_per_s"] * token_s)
        return float(summary["goodput"][f"{unit}_per_s"])


def add_arguments(parser: ArgumentParser) -> None:
    """Its options."""
    options.add_arguments(parser)
    group = options.group(parser, "the sweep")
    default = " ".join(SWEEP)
    group.add_argument(
        "--sweep", nargs="+", type=options.rate, metavar="R", help=f"rates; default: {default}"
    )
    group.add_argument("--rounds", type=options.count, metavar="N", help="default: 1")


def main(arguments: Namespace) -> int:
    """Sweep; 1 when a run is invalid."""
    given = options.settled(arguments)
    if "slo" not in given:
        raise UsageError("sweep needs --slo")
    if given.kind not in LOADS:
        raise UsageError(f"sweep needs a load with one rate: {', '.join(LOADS)}")
    rates = getattr(given, "sweep", [options.rate(text) for text in SWEEP])
    given.rate = next((rate for rate in rates if rate.relative), rates[0])
    directory = options.directory(given)
    with session.reached(given, one=False) as reached:
        run = session.resolved(given, reached[0].base_url, execute)
        rounds = range(getattr(given, "rounds", 1))
        cells = [c for k in rounds for c in measure(run, reached, rates, directory, execute, k)]
    path = files.create(directory, f"{run.name}-sweep", ".json")
    path.write_text(json.dumps(dump(run, cells)) + "\n", encoding="utf-8")
    print(render(run, cells))
    print(path)
    return int(any(cell.result.verdict.grade is Grade.INVALID for cell in cells))


def measure(
    run: Run,
    reached: Sequence[Server],
    rates: Sequence[Rate],
    directory: Path,
    execute: Execute,
    number_: int = 0,
) -> list[Cell]:
    """One round: every server at every rate, with a plan of its own for each rate and round.

    Raises:
        KeyboardInterrupt: the user ended it.

    """
    cells = []
    for step, rate in enumerate(rates):
        load = replace(run.spec.load, rate=rate.at(run.capacity))
        spec = replace(run.spec, load=load, seed=run.spec.seed + number_ * len(rates) + step)
        for server in reached if (number_ + step) % 2 == 0 else reversed(reached):
            target = replace(run.target, base_url=server.base_url)
            result, path = execute(replace(run, target=target, spec=spec), directory)
            if result.harness.interrupted:
                raise KeyboardInterrupt
            cells.append(Cell(server.label, rate, result, path, number_))
            print(line(cells[-1]), flush=True)
    return cells


def line(cell: Cell) -> str:
    """What is told of a cell as soon as it is measured."""
    summary, verdict = cell.result.summary, cell.result.verdict
    refused = number(summary["rejection_s"]["p99"] and 1000 * summary["rejection_s"]["p99"])
    return (
        f"{name(cell.rate):>6} {cell.server}: offered {number(summary['offered_per_s'])}/s, served "
        f"{number(summary['requests_per_s'])}/s, good {number(cell.goodput())}/s, refusal p99 "
        f"{refused} ms; {'; '.join([verdict.grade.value, *verdict.reasons])}"
    )


def name(rate: Rate) -> str:
    """As it was given."""
    return f"{rate.value:g}{'x' if rate.relative else '/s'}"


def pooled(cells: Sequence[Cell], unit: str = "requests") -> Mapping[str, Mapping[str, float]]:
    """Goodput by server and rate, over all rounds, whose windows are of one length."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        found.setdefault(cell.server, {}).setdefault(name(cell.rate), []).append(cell.goodput(unit))
    return {
        server: {rate: fmean(values) for rate, values in row.items()}
        for server, row in found.items()
    }


def render(run: Run, cells: Sequence[Cell]) -> str:
    """Tables: goodput by server and rate, and as a share of the best of any server and rate."""
    rows = [line for unit in UNITS for line in _table(pooled(cells, unit), unit)]
    rows.append("in brackets: of the best of any server at any rate")
    if run.capacity is not None:
        rows.append(f"capacity of the first server: {number(run.capacity)} requests/s")
    doubtful = sum(cell.result.verdict.grade is not Grade.VALID for cell in cells)
    if doubtful:
        rows.append(f"{doubtful} of {len(cells)} runs are not valid: read their reasons above")
    return "\n".join(rows)


def _table(found: Mapping[str, Mapping[str, float]], unit: str) -> list[str]:
    title = f"goodput, {UNITS[unit]}"
    width = max(len(title), *map(len, found))
    rates = next(iter(found.values()))
    rows = [f"{title:<{width}}" + "".join(f"{rate:>18}" for rate in rates)]
    top = max(value for row in found.values() for value in row.values())
    for server, row in found.items():
        texts = (f"{number(value)} ({share(top and value / top)})" for value in row.values())
        rows.append(f"{server:<{width}}" + "".join(f"{text:>18}" for text in texts))
    return [*rows, ""]


def dump(run: Run, cells: Sequence[Cell]) -> dict[str, Any]:
    """As JSON types."""
    return {
        "schema": SCHEMA,
        "settings": settings.dump(run),
        "cells": [
            {
                "server": cell.server,
                "rate": name(cell.rate),
                "round": cell.round,
                "result": str(cell.path),
                "verdict": cell.result.verdict.grade.value,
                "reasons": list(cell.result.verdict.reasons),
                "offered_per_s": cell.result.summary["offered_per_s"],
                "requests_per_s": cell.result.summary["requests_per_s"],
                "goodput_per_s": cell.goodput(),
                "good_tokens_per_s": cell.goodput("output_tokens"),
                "good_sequences": cell.goodput("sequences"),
                "share_met": share_met(cell.result),
                "rejection_s": cell.result.summary["rejection_s"],
                "probes": dict(cell.result.probes),
            }
            for cell in cells
        ],
    }
