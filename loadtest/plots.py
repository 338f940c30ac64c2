"""Pictures of one or more results: one colour and one kind of line for each.

Times are seconds since the start of a run; what is measured is shaded. Latencies count from the
intended send, so that a late harness shows.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.bootstrap import Floats
from loadtest.record import Record
from loadtest.result import Result
from loadtest.table import labels

WIDTH, HEIGHT = 10.0, 3.2  # inches, of a row
ROOM = 1.1  # times the greatest value
LOG_FROM = 100  # times the least value
MAX_BINS = 100
COLOURS: Sequence[str] = matplotlib.color_sequences["petroff10"]  # made for colour-blindness
FAILED_AT = 0.96  # of the height of the axes
LINES = ("-", "--", "-.", ":")
Read: TypeAlias = Callable[[Record], float | None]


def _styles(results: Sequence[Result]) -> list[tuple[Result, dict[str, Any]]]:
    looks = zip(results, labels(results), cycle(COLOURS), cycle(LINES), strict=False)
    return [
        # A space, for a name that starts with an underscore is left out of a legend.
        (result, {"label": f" {label}", "color": colour, "linestyle": line})
        for result, label, colour, line in looks
    ]


def _panels(rows: int, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, HEIGHT * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def _legend(axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    if unique:
        legend = axes.figure.legend(
            unique.values(),
            unique.keys(),
            loc="outside upper left",
            ncols=3,
            frameon=False,
            markerscale=2,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def _shade(axes: Axes, results: Sequence[Result]) -> None:
    for start, end in sorted({result.window for result in results}):
        axes.axvspan(start, end, color="black", alpha=0.06, linewidth=0, label="measured")


def _from_zero(axes: Axes, values: Sequence[float], axis: str = "y") -> None:
    """From 0, or logarithmic where values span more than two decades."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > LOG_FROM * min(positive):
        axes.set(**{f"{axis}margin": 0.1, f"{axis}scale": "log"})
    else:
        axes.set(**{f"{axis}lim": (0, ROOM * max(positive, default=1.0))})


def latency(results: Sequence[Result]) -> Figure:
    """TTFT and E2E by intended send; a request that failed is a cross at the top."""
    figure, (above, below) = _panels(2, sharex=True)
    for axes, name, read in (
        (above, "TTFT from the intended send, s", lambda r: r.effective_ttft),
        (below, "E2E from the intended send, s", lambda r: r.effective_e2e),
    ):
        _shade(axes, results)
        shown = [_scatter(axes, result, style, read) for result, style in _styles(results)]
        _from_zero(axes, [value for values in shown for value in values])
        axes.set(ylabel=name)
    below.set(xlabel="intended send, s")
    _legend(above)
    return figure


def _scatter(axes: Axes, result: Result, style: Mapping[str, Any], read: Read) -> list[float]:
    colour, label = style["color"], style["label"]
    points = [(r.intended, v) for r in result.records if r.ok and (v := read(r)) is not None]
    axes.plot(*_columns(points), ".", ms=4, alpha=0.6, mew=0, color=colour, label=label)
    failed = [(r.intended, FAILED_AT) for r in result.records if not r.ok]
    if failed:
        axes.plot(
            *_columns(failed),
            "x",
            ms=5,
            color=colour,
            label=f"{label}: failed",
            transform=axes.get_xaxis_transform(),
        )
    return [value for _, value in points]


def _columns(points: Sequence[tuple[float, float]]) -> Floats:
    return np.array(points, dtype=np.float64).reshape(-1, 2).T


def distributions(results: Sequence[Result]) -> Figure:
    """The share of all that was offered in the window that took at most so long."""
    figure, panels = _panels(1, 3, sharey=True)
    for axes, name, read in zip(
        panels,
        ("TTFT from the intended send, s", "TPOT, ms", "E2E from the intended send, s"),
        (lambda r: r.effective_ttft, _tpot_ms, lambda r: r.effective_e2e),
        strict=True,
    ):
        found = [_taken(result, read) for result in results]
        shown = [value for values, _ in found for value in values]
        end = ROOM * max(shown, default=1.0)
        for (values, offered), (_, style) in zip(found, _styles(results), strict=True):
            reached = np.arange(len(values) + 1) / max(1, offered)
            axes.step([0.0, *values, end], [*reached, reached[-1]], where="post", **style)
        _from_zero(axes, shown, "x")
        axes.set(xlabel=name, ylim=(0, 1.02))
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="share of the offered")
    _legend(panels[0])
    return figure


def _tpot_ms(record: Record) -> float | None:
    return None if record.tpot is None else 1000 * record.tpot


def _taken(result: Result, read: Read) -> tuple[list[float], int]:
    """What successes took, in order, and how many requests that is of.

    A success that cannot have the value (a TPOT of one token) is not one of them.
    """
    found = [read(r) for r in result.measured if r.ok]
    values = sorted(value for value in found if value is not None)
    return values, len(values) + sum(not r.ok for r in result.measured)


def in_flight(results: Sequence[Result]) -> Figure:
    """How many requests were sent and had not ended."""
    figure, (axes,) = _panels(1)
    _shade(axes, results)
    top = 0.0
    for result, style in _styles(results):
        starts = [r.sent for r in result.records if r.sent is not None]
        ends = [r.ended for r in result.records if r.sent is not None and r.ended is not None]
        times = np.array([0.0, *starts, *ends])
        order = np.argsort(times, kind="stable")
        count = np.cumsum(np.array([0, *[1] * len(starts), *[-1] * len(ends)])[order])
        axes.step(times[order], count, where="post", linewidth=1, **style)
        top = max(top, float(count.max()))
    _from_zero(axes, [top])
    axes.set(xlabel="time, s", ylabel="requests in flight")
    _legend(axes)
    return figure


def rates(results: Sequence[Result]) -> Figure:
    """Requests that were to arrive, dotted, and that succeeded, by the time they did."""
    figure, (axes,) = _panels(1)
    _shade(axes, results)
    arrivals = [[r.intended for r in result.records] for result in results]
    ends = [[r.ended for r in result.records if r.ok and r.ended is not None] for result in results]
    edges = _edges([time for times in (*arrivals, *ends) for time in times])
    top = 0.0
    for position, (_, style) in enumerate(_styles(results)):
        dotted = style | {"linestyle": ":", "label": f"{style['label']}: arrivals"}
        for times, look in ((arrivals, dotted), (ends, style | {"linestyle": "-"})):
            rate = np.histogram(times[position], edges)[0] / (edges[1] - edges[0])
            axes.stairs(rate, edges, baseline=None, linewidth=1.5, **look)
            top = max(top, float(rate.max()))
    _from_zero(axes, [top])
    axes.set(xlabel="time, s", ylabel="requests/s")
    _legend(axes)
    return figure


def _edges(times: Sequence[float]) -> Floats:
    """Of bins of a second, or of more where that makes too many."""
    end = max(times, default=0.0)
    width = max(1.0, end / MAX_BINS)
    return np.arange(np.floor(end / width) + 2) * width


def gauges(results: Sequence[Result]) -> Figure | None:
    """What the servers told of themselves, each series on a scale of its own; None: nothing."""
    names = sorted({name for result in results for name in result.gauges.series})
    if not names:
        return None
    rows = -(-len(names) // 2)
    figure, panels = _panels(rows, 2, sharex=True)
    for axes, name in zip(panels, names, strict=False):
        _shade(axes, results)
        for result, style in _styles(results):
            values = np.array(result.gauges.series.get(name, []), dtype=np.float64)
            axes.plot(result.gauges.at[: len(values)], values, **style)
        axes.set(ylim=(0, None))
        axes.set_title(name, fontsize="medium", parse_math=False)
    for axes in panels[len(names) :]:
        axes.remove()
    for axes in panels[max(0, len(names) - 2) : len(names)]:
        axes.set(xlabel="time, s")
        axes.tick_params(labelbottom=True)
    _legend(panels[0])
    return figure


def draw(results: Sequence[Result]) -> dict[str, Figure]:
    """All pictures that the results have data for, by name."""
    found = {
        "latency": latency(results),
        "distributions": distributions(results),
        "in-flight": in_flight(results),
        "rates": rates(results),
        "gauges": gauges(results),
    }
    return {name: figure for name, figure in found.items() if figure is not None}
