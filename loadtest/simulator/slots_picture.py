"""`slots`: both ways of batching on the same requests, as text and as a picture over time."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from loadtest import options
from loadtest.errors import UsageError
from loadtest.simulator.slots import (
    BatchingScheduler,
    ContinuousBatchingScheduler,
    Request,
    Result,
    Script,
    StaticBatchingScheduler,
    drain,
)

KINDS: Mapping[str, type[BatchingScheduler]] = {
    "static": StaticBatchingScheduler,
    "continuous": ContinuousBatchingScheduler,
}
EXAMPLE = (3, 3, 3, 12, 3, 3, 3, 3, 3, 3)
"""Three short requests and a long one for four slots, and short ones that wait."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--slots", type=options.count, default=4, metavar="B")
    parser.add_argument(
        "--lengths",
        type=options.count,
        nargs="+",
        default=list(EXAMPLE),
        metavar="N",
        help="tokens of each request; default: three short and a long one, and six that wait",
    )
    parser.add_argument("--out", type=Path, default=Path("slots.png"), metavar="PICTURE")


def main(arguments: argparse.Namespace) -> int:
    """Print both charts and write the picture."""
    if len(arguments.lengths) > len(LETTERS):
        raise UsageError(f"--lengths: at most {len(LETTERS)} requests can be told apart")
    found = {kind: served(kind, arguments.slots, arguments.lengths) for kind in KINDS}
    for kind, results in found.items():
        print(chart(kind, arguments.slots, results))
    picture(arguments.slots, found).savefig(arguments.out, dpi=120)
    print(arguments.out)
    return 0


def served(kind: str, slots: int, lengths: Sequence[int]) -> list[Result]:
    """Serve requests that are all there from the start."""
    names = LETTERS[: len(lengths)]
    scheduler = KINDS[kind](slots, Script(dict(zip(names, lengths, strict=True))))
    for name in names:
        scheduler.submit(Request(name, max(lengths)))
    return drain(scheduler)


def chart(kind: str, slots: int, results: Sequence[Result]) -> str:
    """A line for each slot, a letter for each step that a request is in it."""
    steps = max(result.until for result in results)
    lines = [["."] * steps for _ in range(slots)]
    for result in results:
        lines[result.slot][result.since : result.until] = result.request.name * len(result.tokens)
    used = sum(len(result.tokens) for result in results) / (slots * steps)
    head = f"{kind}: {steps} steps, {used:.0%} of the slots used"
    return "\n".join([head, *(f"  slot {n}  {''.join(line)}" for n, line in enumerate(lines))])


def picture(slots: int, found: Mapping[str, Sequence[Result]]) -> Figure:
    """Slots over steps, one row of axes for each scheduler."""
    figure = Figure(figsize=(10.0, 1.0 + 0.45 * slots * len(found)), layout="constrained")
    rows = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    colours = matplotlib.color_sequences["petroff10"]
    for axes, (kind, results) in zip(rows, found.items(), strict=True):
        for result in results:
            colour = colours[LETTERS.index(result.request.name) % len(colours)]
            width = result.until - result.since
            axes.barh(result.slot, width, left=result.since, color=colour, edgecolor="white")
            middle = result.since + width / 2
            axes.text(middle, result.slot, result.request.name, ha="center", va="center")
        steps = max(result.until for result in results)
        axes.set_title(f"{kind} batching: {steps} steps", fontsize="medium")
        axes.axvline(steps, color="gray", linestyle="--")
        axes.set(yticks=range(slots), ylim=(slots - 0.5, -0.5), ylabel="slot")
    rows[-1].set(xlabel="step")
    return figure
