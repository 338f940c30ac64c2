"""What `batching` found, as tables and as a picture."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from loadtest import arms
from loadtest.arms import LOAD, STATISTICS, Cell
from loadtest.table import NONE, number
from loadtest.text import aligned

CLOSED_HEAD = (
    *("closed loop", "B", "static tokens/s", "continuous", "ratio [95 %]"),
    *("bound of the run", "of the lengths", "ratio of whole rounds"),
)
OPEN_HEAD = (
    *("open loop, E2E in ms", "B", "requests/s", "static mean/p50/p99", "continuous"),
    *("ratio of means [95 %]", "of p50s", "of p99s"),
)


def progress(cell: Cell) -> str:
    """A line for each as it is done."""
    return f"{cell.workload.name}, B = {cell.batch}: {cell.throughput.ratio}"


def render(cells: Sequence[Cell]) -> str:
    """Two tables, and what to know of them."""
    closed = [CLOSED_HEAD, *(_closed_row(cell) for cell in cells)]
    opened = [OPEN_HEAD, *(_open_row(cell) for cell in cells)]
    return "\n".join([aligned(closed), "", aligned(opened), "", *_notes(cells)])


def _closed_row(cell: Cell) -> Sequence[str]:
    return (
        cell.workload.name,
        str(cell.batch),
        number(cell.throughput.static),
        number(cell.throughput.continuous),
        str(cell.throughput.ratio),
        f"{cell.bound:.2f}",
        f"{arms.bound(cell.workload.outputs, cell.batch):.2f}",
        str(cell.whole.ratio),
    )


def _open_row(cell: Cell) -> Sequence[str]:
    found = [cell.latencies.get(name) for name in STATISTICS]
    return (
        cell.workload.name,
        str(cell.batch),
        number(cell.rate),
        " / ".join(_ms(f.static if f else None) for f in found),
        " / ".join(_ms(f.continuous if f else None) for f in found),
        *(str(f.ratio) if f else NONE for f in found),
    )


def _ms(seconds: float | None) -> str:
    return number(None if seconds is None else 1000 * seconds)


def _notes(cells: Sequence[Cell]) -> Iterator[str]:
    first = cells[0]
    yield (
        f"ratios: continuous / static [95 % bootstrap interval] over {len(first.closed)} pairs of "
        "rounds in closed loop, of the time in which all slots could be taken, and over "
        f"{len(first.open)} in open loop, at {LOAD:.0%} of the static arm's throughput"
    )
    for name, (prompts, outputs) in {c.workload.name: c.workload.scales for c in cells}.items():
        if (prompts, outputs) != (1.0, 1.0):
            yield f"{name}: lengths × {prompts:.3g} (prompts) and × {outputs:.3g} (outputs)"
    for cell in cells:
        if cell.above:
            yield (
                f"NOT VALID: {cell.workload.name}, B = {cell.batch}: the ratio is above its bound: "
                "the arms differ in something else"
            )


def picture(cells: Sequence[Cell]) -> Figure:
    """Throughput ratios by workload and B, with their bounds."""
    names = list(dict.fromkeys(cell.workload.name for cell in cells))
    ordered = sorted(cells, key=lambda cell: names.index(cell.workload.name))
    found = [cell.throughput.ratio for cell in ordered]
    places = np.arange(len(ordered))
    values = np.array([ratio.value for ratio in found])
    ends = np.array([(ratio.low, ratio.high) for ratio in found]).T
    figure = Figure(figsize=(8.0, 1.5 + 0.45 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    axes.barh(places, values, color="tab:blue", height=0.6)
    axes.errorbar(
        values,
        places,
        xerr=np.abs(ends - values),
        fmt="none",
        color="black",
        capsize=4,
        label="95 % interval",
    )
    axes.scatter(
        [cell.bound for cell in ordered], places, marker="|", s=500, color="tab:red", label="bound"
    )
    axes.axvline(1.0, color="gray", linewidth=0.8)
    axes.set_yticks(places, [f"{cell.workload.name}, B = {cell.batch}" for cell in ordered])
    axes.invert_yaxis()
    axes.set_xlabel("output tokens/s, continuous / static")
    axes.legend()
    return figure
