"""Pictures show what was measured: the data that they draw."""

import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle, StepPatch

from loadtest import plots
from loadtest.plots import COLOURS
from loadtest.result import Gauges
from tests.loadtest.factory import result


def label(artist: Artist) -> str:
    """Without the grade."""
    return str(artist.get_label()).replace(" (DEGRADED)", "").strip()


def named(axes: Axes, name: str) -> np.ndarray:
    """(n, 2) of the line with this name."""
    (line,) = [line for line in axes.lines if label(line) == name]
    return np.asarray(line.get_xydata())


def test_latencies_lie_at_their_intended_send_and_failures_at_the_top() -> None:
    found = result("a", 60, fail_every=10)
    above, below = plots.latency([found]).axes
    good = [r for r in found.records if r.ok]
    assert named(above, "a").tolist() == [[r.intended, r.effective_ttft] for r in good]
    assert named(below, "a").tolist() == [[r.intended, r.effective_e2e] for r in good]
    for axes in (above, below):
        assert named(axes, "a: failed")[:, 0].tolist() == [0.05, 1.05, 2.05, 3.05, 4.05, 5.05]
        assert (axes.get_ylim()[0], axes.get_yscale()) == (0.0, "linear")


def test_latencies_of_many_decades_are_logarithmic() -> None:
    both = [result("fast", 60), result("slow", 60, scale=200.0)]
    assert {axes.get_yscale() for axes in plots.latency(both).axes} == {"log"}
    assert {axes.get_xscale() for axes in plots.distributions(both).axes} == {"log"}


def test_a_distribution_ends_at_the_share_that_succeeded() -> None:
    found = result("a", 400, fail_every=4)
    ttft, tpot, e2e = plots.distributions([found]).axes
    share = found.summary["outcomes"]["ok"] / found.summary["offered"]
    for axes in (ttft, tpot, e2e):
        assert named(axes, "a")[-1, 1] == pytest.approx(share)
        assert named(axes, "a")[-1, 0] == axes.get_xlim()[1]  # and never rises again
    steps = named(ttft, "a")
    half = steps[np.searchsorted(steps[:, 1], 0.5), 0]
    assert half == pytest.approx(
        found.summary["latency_of_all_offered_s"]["effective_ttft"]["p50"], rel=0.02
    )


def test_in_flight_is_what_was_sent_and_had_not_ended() -> None:
    found = result("a", 100, rate=40.0, scale=3.0, warmup_s=0.0)
    (axes,) = plots.in_flight([found]).axes
    steps = named(axes, "a")
    for moment in (0.5, 1.0, 2.0):
        expected = sum((r.sent or 0) <= moment < (r.ended or 0) for r in found.records)
        assert steps[np.searchsorted(steps[:, 0], moment, side="right") - 1, 1] == expected
        assert expected > 5
    assert steps[-1, 1] == 0


def test_rates_are_per_second() -> None:
    found = result("a", 2000, fail_every=2)  # 200 s: bins of more than a second
    (axes,) = plots.rates([found]).axes
    rates = {label(p): p.get_data() for p in axes.patches if isinstance(p, StepPatch)}
    for name, count, rate in (("a: arrivals", 2000, 10.0), ("a", 1000, 5.0)):
        values, edges, _ = rates[name]
        assert (values * np.diff(edges)).sum() == pytest.approx(count)
        assert values[5:90].mean() == pytest.approx(rate, rel=0.02)


def test_each_series_of_the_servers_has_its_scale_and_each_result_its_colour() -> None:
    both = [
        result("a", 60, gauges=Gauges([0.0, 1.0, 2.0], {"x": [1.0, None, 3.0], "y": [0.1] * 3})),
        result("b", 60, gauges=Gauges([0.0, 1.0], {"x": [900.0, 800.0]})),
    ]
    figure = plots.gauges(both)
    assert figure is not None
    x, y = figure.axes
    assert (x.get_title(), y.get_title()) == ("x", "y")
    assert named(x, "a")[[0, 2]].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert named(x, "b").tolist() == [[0.0, 900.0], [1.0, 800.0]]
    assert len(named(y, "b")) == 0
    assert y.get_ylim()[1] < 1 < x.get_ylim()[1]
    assert [line.get_color() for line in x.lines] == list(COLOURS[:2])
    assert len({line.get_linestyle() for line in x.lines}) == 2


def test_the_measured_window_is_shaded() -> None:
    found = result("a", 100, warmup_s=3.0)
    for figure in (plots.latency([found]), plots.in_flight([found]), plots.rates([found])):
        (shade,) = [p for p in figure.axes[0].patches if label(p) == "measured"]
        assert isinstance(shade, Rectangle)
        assert (shade.get_x(), shade.get_width()) == (3.0, 7.0)
