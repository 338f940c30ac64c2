"""Goodput at several rates, for one or more servers in turn: how much of its best each keeps.

Each server is first measured in a closed loop; rates like `2x` are multiples of what the first one
can do, so that all servers see the same load. The rates are gone through in turn for all servers,
so that a change of the machine's pace meets them alike.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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

SCHEMA = 1
SWEEP = ("0.9x", "1x", "1.2x", "1.5x", "2x", "5x", "10x")


@dataclass(frozen=True)
class Cell:
    """One server at one rate."""

    server: str
    rate: Rate
    result: Result
    path: Path

    @property
    def goodput(self) -> float:
        """Requests per second that met every SLO."""
        return float(self.result.summary["goodput"]["requests_per_s"])


def add_arguments(parser: ArgumentParser) -> None:
    """Its options."""
    options.add_arguments(parser)
    group = options.group(parser, "the sweep")
    default = " ".join(SWEEP)
    group.add_argument(
        "--sweep", nargs="+", type=options.rate, metavar="R", help=f"rates; default: {default}"
    )


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
        cells = measure(run, reached, rates, directory, execute)
    path = files.create(directory, f"{run.name}-sweep", ".json")
    path.write_text(json.dumps(dump(run, cells)) + "\n", encoding="utf-8")
    print(render(run, cells))
    print(path)
    return int(any(cell.result.verdict.grade is Grade.INVALID for cell in cells))


def measure(
    run: Run, reached: Sequence[Server], rates: Sequence[Rate], directory: Path, execute: Execute
) -> list[Cell]:
    """Every server at every rate, each with a plan of its own seed for the rate.

    Raises:
        KeyboardInterrupt: the user ended it.

    """
    cells = []
    for step, rate in enumerate(rates):
        load = replace(run.spec.load, rate=rate.at(run.capacity))
        spec = replace(run.spec, load=load, seed=run.spec.seed + step)
        for server in reached if step % 2 == 0 else reversed(reached):
            target = replace(run.target, base_url=server.base_url)
            result, path = execute(replace(run, target=target, spec=spec), directory)
            if result.harness.interrupted:
                raise KeyboardInterrupt
            cells.append(Cell(server.label, rate, result, path))
            print(line(cells[-1]), flush=True)
    return cells


def line(cell: Cell) -> str:
    """What is told of a cell as soon as it is measured."""
    summary, verdict = cell.result.summary, cell.result.verdict
    refused = number(summary["rejection_s"]["p99"] and 1000 * summary["rejection_s"]["p99"])
    return (
        f"{name(cell.rate):>6} {cell.server}: offered {number(summary['offered_per_s'])}/s, served "
        f"{number(summary['requests_per_s'])}/s, good {number(cell.goodput)}/s, refusal p99 "
        f"{refused} ms; {'; '.join([verdict.grade.value, *verdict.reasons])}"
    )


def name(rate: Rate) -> str:
    """As it was given."""
    return f"{rate.value:g}{'x' if rate.relative else '/s'}"


def best(cells: Sequence[Cell]) -> Mapping[str, float]:
    """The best goodput of each server at any rate, requests/s."""
    found: dict[str, float] = {}
    for cell in cells:
        found[cell.server] = max(found.get(cell.server, 0.0), cell.goodput)
    return found


def render(run: Run, cells: Sequence[Cell]) -> str:
    """A table: goodput by server and rate, and as a share of the best of any server and rate."""
    top = max(best(cells).values(), default=0.0)
    rates = list(dict.fromkeys(name(cell.rate) for cell in cells))
    width = max(len(cell.server) for cell in cells)
    rows = [f"{'goodput, requests/s':<{width}}" + "".join(f"{rate:>18}" for rate in rates)]
    for server in best(cells):
        row = [cell for cell in cells if cell.server == server]
        texts = (f"{number(c.goodput)} ({share(top and c.goodput / top)})" for c in row)
        rows.append(f"{server:<{width}}" + "".join(f"{text:>18}" for text in texts))
    doubtful = sum(cell.result.verdict.grade is not Grade.VALID for cell in cells)
    rows.append(f"in brackets: of {number(top)}/s, the best of any server at any rate")
    if run.capacity is not None:
        rows.append(f"capacity of the first server: {number(run.capacity)} requests/s")
    if doubtful:
        rows.append(f"{doubtful} of {len(cells)} runs are not valid: read their reasons above")
    return "\n".join(rows)


def dump(run: Run, cells: Sequence[Cell]) -> dict[str, Any]:
    """As JSON types."""
    return {
        "schema": SCHEMA,
        "settings": settings.dump(run),
        "cells": [
            {
                "server": cell.server,
                "rate": name(cell.rate),
                "result": str(cell.path),
                "verdict": cell.result.verdict.grade.value,
                "reasons": list(cell.result.verdict.reasons),
                "offered_per_s": cell.result.summary["offered_per_s"],
                "requests_per_s": cell.result.summary["requests_per_s"],
                "goodput_per_s": cell.goodput,
                "share_met": share_met(cell.result),
                "rejection_s": cell.result.summary["rejection_s"],
                "probes": dict(cell.result.probes),
            }
            for cell in cells
        ],
    }
