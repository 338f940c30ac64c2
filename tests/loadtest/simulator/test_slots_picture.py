"""The chart and the picture of the slots show what the schedulers did."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from loadtest.__main__ import USAGE_ERROR, main
from loadtest.simulator import slots_picture


def test_both_charts_of_the_example(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "slots.png"
    assert main(["slots", "--out", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "static: 18 steps, 54% of the slots used",
        "  slot 0  AAA.........EEEIII",
        "  slot 1  BBB.........FFFJJJ",
        "  slot 2  CCC.........GGG...",
        "  slot 3  DDDDDDDDDDDDHHH...",
        "continuous: 12 steps, 81% of the slots used",
        "  slot 0  AAAEEEHHH...",
        "  slot 1  BBBFFFIII...",
        "  slot 2  CCCGGGJJJ...",
        "  slot 3  DDDDDDDDDDDD",
        str(path),
    ]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_bar_for_each_request_in_its_slot() -> None:
    found = {kind: slots_picture.served(kind, 2, [1, 3, 2]) for kind in slots_picture.KINDS}
    static, continuous = slots_picture.picture(2, found).axes
    bars = [(bar.get_x(), bar.get_y() + 0.4, bar.get_width()) for bar in bars_of(continuous)]
    assert sorted(bars) == [(0, 0, 1), (0, 1, 3), (1, 0, 2)]
    assert sorted(bar.get_x() for bar in bars_of(static)) == [0, 0, 3]


def bars_of(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_more_requests_than_letters() -> None:
    assert main(["slots", "--lengths", *["1"] * 27]) == USAGE_ERROR
