"""What a front end costs: its CPU time per streamed token, per request and per probe, side by side.

All servers are up at once, with the same engine arguments, and are given the same loads in turn
(A B C, C B A, …): an idle one takes no CPU. The front end is every process of a server but those of
the engine, which name themselves; their CPU time is their own accounting, not the wall clock's.
Loads are closed loops that send so many requests and wait for all of them, so that every token is
counted; what comes with a run (the question for the models, a scrape of the metrics each second)
is counted for all servers alike.
"""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from loadtest import files, machine, options, servers
from loadtest.bootstrap import Paired, paired
from loadtest.errors import UsageError
from loadtest.plan import Load, Shape, Spec
from loadtest.result import Result
from loadtest.run import execute
from loadtest.servers import Server
from loadtest.settings import Run, Target
from loadtest.table import number
from loadtest.verdict import Grade

SCHEMA = 1
ROUNDS = 6
"""With fewer, the interval is narrower than it says: see `bootstrap.paired_interval`."""
PROMPT_TOKENS = 32
PROBES = 500
ENGINE = ("EngineCore", "VLLM::Worker", "DPCoordinator")
"""What the processes of vllm's engine call themselves."""


@dataclass(frozen=True)
class Work:
    """A load: so many users send so many requests of so many tokens."""

    name: str
    users: int
    requests: int
    output_tokens: int
    stream: bool

    @property
    def unit(self) -> str:
        """What its CPU time is divided by."""
        return "token" if self.stream else "request"

    @property
    def units(self) -> int:
        """How many of them a run has."""
        return self.requests * (self.output_tokens if self.stream else 1)


WORKS = (
    Work("32 streams", 32, 320, 128, stream=True),
    Work("128 streams", 128, 640, 128, stream=True),
    Work("128 whole", 128, 640, 128, stream=False),
    Work("128 short", 128, 1100, 16, stream=False),
)


@dataclass(frozen=True)
class Cell:
    """One server under one load.

    Attributes:
        cpu_us: of the front end, per unit.
        itl_p99_s: over all gaps, each shared by the tokens that came after it.
        resident_bytes: what the front end has after the run.
        peak_bytes: the most that it has had since its start; loading takes more than serving.

    """

    server: str
    work: str
    round: int
    cpu_us: float
    requests_per_s: float
    resident_bytes: int
    peak_bytes: int
    tokens_per_s: float = 0.0
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    verdict: str = Grade.VALID.value
    reasons: tuple[str, ...] = ()


READ: Mapping[str, tuple[str, float]] = {
    "cpu_us": ("CPU µs", 1.0),
    "tokens_per_s": ("tokens/s", 1.0),
    "requests_per_s": ("requests/s", 1.0),
    "ttft_p50_s": ("TTFT p50 ms", 1e3),
    "ttft_p99_s": ("TTFT p99 ms", 1e3),
    "itl_p50_s": ("ITL p50 ms", 1e3),
    "itl_p99_s": ("ITL p99 ms", 1e3),
    "resident_bytes": ("resident MB", 1e-6),
    "peak_bytes": ("peak MB", 1e-6),
}
"""Columns, and what a value is multiplied by."""


class FrontEnd:
    """The processes of a server that are not its engine's.

    Args:
        server: one that was started here.

    Raises:
        UsageError: it was not.

    """

    def __init__(self, server: Server) -> None:
        if server.pid is None:
            raise UsageError("frontend measures processes of its own: --serve")
        root = psutil.Process(server.pid)
        self.processes = [p for p in (root, *root.children(recursive=True)) if _is_front(p)]

    def cpu_s(self) -> float:
        """User and system time since the start."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def resident_bytes(self) -> int:
        """Added up."""
        return sum(process.memory_info().rss for process in self.processes)

    def peak_bytes(self) -> int:
        """The highest resident sizes, added up."""
        return sum(_peak_bytes(process.pid) for process in self.processes)


def _is_front(process: psutil.Process) -> bool:
    title = " ".join(process.cmdline())
    return not any(name in title for name in (*ENGINE, "resource_tracker"))


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def add_arguments(parser: ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--serve",
        nargs="+",
        type=servers.find,
        required=True,
        metavar="COMMAND",
        help="the first is what the others are compared with",
    )
    parser.add_argument("--serve-model", type=Path, metavar="DIR", help="{model}; else a tiny one")
    parser.add_argument("--rounds", type=options.count, default=ROUNDS, metavar="N")
    parser.add_argument("--out", type=Path, default=options.RESULTS, metavar="DIR")


def main(arguments: Namespace) -> int:
    """Measure, print the table and write the JSON; 1 when a run is invalid."""
    directory: Path = arguments.out
    with servers.reached(arguments.serve, arguments.serve_model, directory) as reached:
        fronts = [FrontEnd(server) for server in reached]
        for work in WORKS:
            for server in reached:
                _run(server, work, seed=0, directory=directory)  # neither counts the first ones
        cells = []
        for number_ in range(arguments.rounds):
            order = list(zip(reached, fronts, strict=True))
            # A drift of the machine within a round speaks for none of them.
            for server, front in order if number_ % 2 == 0 else reversed(order):
                cells += measure(server, front, number_, directory)
    path = files.create(directory, "frontend", ".json")
    found = {"schema": SCHEMA, "environment": machine.facts("aiohttp", "uvloop"), **dump(cells)}
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(render(cells))
    print(path)
    return int(any(cell.verdict == Grade.INVALID.value for cell in cells))


def measure(server: Server, front: FrontEnd, round_: int, directory: Path) -> list[Cell]:
    """One server under every load, and asked whether it lives."""
    cells = []
    for work in WORKS:
        before = front.cpu_s()
        result = _run(server, work, seed=round_ + 1, directory=directory)
        cpu_s = front.cpu_s() - before
        failed = result.summary["offered"] - result.summary["outcomes"]["ok"]
        if failed:
            raise UsageError(f"{server.label}: {failed} requests of {work.name} failed")
        latency = result.summary["latency_s"]
        cells.append(
            Cell(
                server=server.label,
                work=work.name,
                round=round_,
                cpu_us=cpu_s / work.units * 1e6,
                tokens_per_s=result.summary["output_tokens_per_s"],
                requests_per_s=result.summary["requests_per_s"],
                ttft_p50_s=latency["ttft"]["p50"] if work.stream else None,
                ttft_p99_s=latency["ttft"]["p99"] if work.stream else None,
                itl_p50_s=latency["itl"]["p50"] if work.stream else None,
                itl_p99_s=latency["itl"]["p99"] if work.stream else None,
                resident_bytes=front.resident_bytes(),
                peak_bytes=front.peak_bytes(),
                verdict=result.verdict.grade.value,
                reasons=tuple(result.verdict.reasons),
            )
        )
        print(line(cells[-1]), flush=True)
    cells.append(_probed(server, front, round_))
    print(line(cells[-1]), flush=True)
    return cells


def _run(server: Server, work: Work, seed: int, directory: Path) -> Result:
    load = Load(kind="closed", concurrency=work.users, requests=work.requests)
    shape = Shape(prompt=f"fixed:{PROMPT_TOKENS}", output=f"fixed:{work.output_tokens}")
    run = Run(
        name=f"frontend-{work.name.replace(' ', '-')}",
        target=Target(base_url=server.base_url, stream=work.stream),
        spec=Spec(load=load, shape=shape, seed=seed),
        warmup_s=0.0,
    )
    return execute(run, directory, progress=False)[0]


def _probed(server: Server, front: FrontEnd, round_: int) -> Cell:
    """Asked for its health so many times, over one connection."""
    before, started = front.cpu_s(), time.monotonic()
    with httpx.Client(trust_env=False) as client:
        for _ in range(PROBES):
            client.get(f"{server.base_url}/health").raise_for_status()
    cpu_s, elapsed = front.cpu_s() - before, time.monotonic() - started
    return Cell(
        server=server.label,
        work="probes",
        round=round_,
        cpu_us=cpu_s / PROBES * 1e6,
        requests_per_s=PROBES / elapsed,
        resident_bytes=front.resident_bytes(),
        peak_bytes=front.peak_bytes(),
    )


# -- the report


def line(cell: Cell) -> str:
    """What is told of a cell as soon as it is measured."""
    return (
        f"round {cell.round + 1}: {cell.server}: {cell.work}: {cell.cpu_us:.1f} µs, "
        f"{cell.tokens_per_s:.0f} tokens/s; {'; '.join([cell.verdict, *cell.reasons])}"
    )


@dataclass(frozen=True)
class Row:
    """A server under a load: medians over the rounds, of values and ratios to the first server."""

    server: str
    work: str
    medians: Mapping[str, float | None]
    ratios: Mapping[str, Paired]


def rows(cells: Sequence[Cell]) -> list[Row]:
    """By load, then server, in the order in which they were measured."""
    first = cells[0].server
    found = []
    for work in dict.fromkeys(cell.work for cell in cells):
        base = {c.round: c for c in cells if c.server == first and c.work == work}
        for server in dict.fromkeys(cell.server for cell in cells):
            own = [c for c in cells if c.server == server and c.work == work]
            ratios = {
                name: paired([(getattr(c, name), getattr(base[c.round], name)) for c in own])
                for name in READ
            }
            medians = {name: _median([getattr(c, name) for c in own]) for name in READ}
            found.append(Row(server, work, medians, ratios))
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def dump(cells: Sequence[Cell]) -> dict[str, Any]:
    """As JSON types."""
    return {
        "cells": [asdict(cell) for cell in cells],
        "rows": [asdict(row) for row in rows(cells)],
    }


def render(cells: Sequence[Cell]) -> str:
    """Medians, and in brackets the median ratios to the first server."""
    found = rows(cells)
    width = max(len(row.server) for row in found)
    lines = []
    for work in dict.fromkeys(row.work for row in found):
        unit = next((w.unit for w in WORKS if w.name == work), "probe")
        lines += ["", f"{work}, CPU per {unit}", " " * width + _titles()]
        lines += [f"{row.server:<{width}}" + _values(row) for row in found if row.work == work]
    return "\n".join(lines)


def _titles() -> str:
    return "".join(f"{title:>20}" for title, _ in READ.values()) + "  95 % of the CPU ratio"


def _values(row: Row) -> str:
    texts = []
    for name, (_, times) in READ.items():
        value, ratio = row.medians[name], row.ratios[name].median
        texts.append("" if not value else f"{number(value * times)} ({number(ratio)})")
    low, high = row.ratios["cpu_us"].interval or (float("nan"), float("nan"))
    return "".join(f"{text:>20}" for text in texts) + f"  {low:.3f} to {high:.3f}"
