"""The same load against two or more servers in turn, and the ratios of what they did.

Each round sends one plan to every server; the next has another seed and the opposite order, so that
neither a lucky plan nor a drift of the machine speaks for one of them.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from loadtest import files, options, session, settings
from loadtest.bootstrap import paired
from loadtest.errors import UsageError
from loadtest.result import Result
from loadtest.run import execute
from loadtest.servers import Server
from loadtest.session import Execute
from loadtest.settings import Run
from loadtest.verdict import Grade

SCHEMA = 1
ROUNDS = 6
"""With fewer, the interval is narrower than it says: see `bootstrap.paired_interval`."""
METRICS: Mapping[str, tuple[str, ...]] = {
    "requests/s": ("requests_per_s",),
    "output tokens/s": ("output_tokens_per_s",),
    "goodput, requests/s": ("goodput", "requests_per_s"),
    "TTFT p50": ("latency_s", "ttft", "p50"),
    "TTFT p99": ("latency_s", "ttft", "p99"),
    "TPOT p50": ("latency_s", "tpot", "p50"),
    "E2E p50": ("latency_s", "e2e", "p50"),
    "E2E p99": ("latency_s", "e2e", "p99"),
}
"""Where a result's summary has them."""

Measured: TypeAlias = tuple[Result, Path]
Round: TypeAlias = list[Measured]
"""One result for each server, in the order of the servers."""


@dataclass(frozen=True)
class Ratio:
    """A metric of a server divided by the first server's.

    Attributes:
        server: its letter; the first is A.
        ratios: of each round that has both numbers, the first's not 0.
        interval: 95 % of the median ratio; None without ratios.
        trusted: every run behind it is valid.

    """

    server: str
    metric: str
    ratios: tuple[float, ...]
    median: float | None
    interval: tuple[float, float] | None
    trusted: bool


def add_arguments(parser: ArgumentParser) -> None:
    """Its options."""
    options.add_arguments(parser)
    group = options.group(parser, "the comparison")
    group.add_argument("--rounds", type=options.count, metavar="N", help=f"default: {ROUNDS}")


def main(arguments: Namespace) -> int:
    """Compare; 1 when a run is invalid, 130 when it was interrupted."""
    given = options.settled(arguments)
    directory, rounds = options.directory(given), getattr(given, "rounds", ROUNDS)
    if len(options.sources(given)) < 2:
        raise UsageError("compare needs two or more servers: --base-url or --serve")
    with session.reached(given, one=False) as reached:
        run = session.resolved(given, reached[0].base_url, execute)
        measured = measure(run, reached, rounds, directory, execute)
    if not measured:
        return 130
    found = [ratio for k in range(1, len(reached)) for ratio in ratios(measured, k)]
    path = files.create(directory, f"{run.name}-compare", ".json")
    path.write_text(json.dumps(dump(run, reached, measured, found)) + "\n", encoding="utf-8")
    print(render(reached, measured, found))
    print(path)
    if len(measured) < rounds:
        return 130
    return int(any(r.verdict.grade is Grade.INVALID for round_ in measured for r, _ in round_))


def measure(
    run: Run, reached: Sequence[Server], rounds: int, directory: Path, execute: Execute
) -> list[Round]:
    """The whole rounds, fewer than asked for when the user interrupts one."""
    measured: list[Round] = []
    for number in range(rounds):
        seeded = replace(run, spec=replace(run.spec, seed=run.spec.seed + number))
        order = list(range(len(reached)))
        found: dict[int, Measured] = {}
        for k in order if number % 2 == 0 else reversed(order):
            print(f"round {number + 1} of {rounds}: {_letter(k)}, {reached[k].label}", flush=True)
            found[k] = execute(_against(seeded, reached[k], k), directory)
            if found[k][0].harness.interrupted:
                return measured
        measured.append([found[k] for k in order])
    return measured


def _against(run: Run, server: Server, index: int) -> Run:
    target = replace(run.target, base_url=server.base_url)
    return replace(run, name=f"{run.name}-{_letter(index)}", target=target)


def _letter(index: int) -> str:
    return chr(ord("A") + index)


# -- the ratios


def ratios(measured: Sequence[Round], index: int) -> list[Ratio]:
    """Of the server with this index to the first, for every metric that any round has."""
    trusted = all(r[k][0].verdict.grade is Grade.VALID for r in measured for k in (0, index))
    found = []
    for metric, path in METRICS.items():
        pairs = [(_value(r[index][0], path), _value(r[0][0], path)) for r in measured]
        if any(value is not None for pair in pairs for value in pair):
            found.append(_ratio(_letter(index), metric, pairs, trusted))
    return found


def _ratio(
    server: str, metric: str, pairs: Sequence[tuple[float | None, float | None]], trusted: bool
) -> Ratio:
    # A first server that did nothing has no ratio: its round is missing, and the table says so.
    found = paired(pairs)
    return Ratio(server, metric, found.ratios, found.median, found.interval, trusted)


def _value(result: Result, path: Sequence[str]) -> float | None:
    found: Any = result.summary
    for name in path:
        found = (found or {}).get(name)
    return None if found is None else float(found)


# -- the report


def dump(
    run: Run, reached: Sequence[Server], measured: Sequence[Round], found: Sequence[Ratio]
) -> dict[str, Any]:
    """As JSON types."""
    return {
        "schema": SCHEMA,
        "kind": "compare",
        "settings": settings.dump(run),
        "servers": [
            {"letter": _letter(k), "label": s.label, "base_url": s.base_url}
            for k, s in enumerate(reached)
        ],
        "rounds": [
            [
                {
                    "result": path.name,
                    "grade": result.verdict.grade.value,
                    "reasons": list(result.verdict.reasons),
                }
                for result, path in round_
            ]
            for round_ in measured
        ],
        "ratios": [
            {
                "server": ratio.server,
                "metric": ratio.metric,
                "ratios": list(ratio.ratios),
                "median": ratio.median,
                "interval_95": list(ratio.interval) if ratio.interval else None,
                "trusted": ratio.trusted,
            }
            for ratio in found
        ],
    }


def render(reached: Sequence[Server], measured: Sequence[Round], found: Sequence[Ratio]) -> str:
    """Every run with its verdict, then the ratios."""
    lines = [f"{_letter(k)}: {server.label}" for k, server in enumerate(reached)]
    for number, round_ in enumerate(measured):
        lines += ["", f"round {number + 1}"]
        lines += [_run_line(_letter(k), *each) for k, each in enumerate(round_)]
    lines += ["", f"{'ratio':<28}{'median':>8}  {'95 % interval':<18}rounds"]
    lines += [_ratio_line(ratio) for ratio in found]
    if not all(ratio.trusted for ratio in found):
        lines.append("* not all of the runs behind it are valid: see their reasons above")
    if len(measured) < ROUNDS:
        lines.append(f"fewer than {ROUNDS} rounds: the true interval is wider")
    return "\n".join(lines)


def _run_line(letter: str, result: Result, path: Path) -> str:
    reasons = "; ".join(result.verdict.reasons)
    verdict = result.verdict.grade.value + (f" ({reasons})" if reasons else "")
    return f"  {letter}  {result.summary['requests_per_s']:8.2f} requests/s  {verdict}  {path}"


def _ratio_line(ratio: Ratio) -> str:
    name = f"{ratio.server} / A  {ratio.metric}" + ("" if ratio.trusted else " *")
    if ratio.median is None or ratio.interval is None:
        return f"{name:<28}{'none':>8}"
    low, high = ratio.interval
    between = f"{low:.3f} to {high:.3f}"
    return f"{name:<28}{ratio.median:8.3f}  {between:<18}{len(ratio.ratios)}"
