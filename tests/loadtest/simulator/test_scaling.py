"""The step in the load: what the table says of two autoscalers, in short."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.simulator import scaling
from loadtest.text import aligned


def arguments(*more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scaling.add_arguments(parser)
    return parser.parse_args(more)


def test_pending_alone_turns_round_and_both_metrics_settle() -> None:
    given = arguments("--minutes", "40", "--door")
    scalers = scaling.scalers(16, 180)
    alone = scaling.Run.of(given, scalers["pending, defaults"], 0)
    both = scaling.Run.of(given, scalers["pending and running, tuned"], 0)
    peak, _, changes, hours, *_ = alone.cells
    assert peak == 16
    assert changes >= 4
    calm_peak, calm_end, calm_changes, calm_hours, *_ = both.cells
    assert calm_peak <= 6
    assert calm_end in (3, 4)
    assert calm_changes <= 1
    assert calm_hours < hours / 2


def test_what_is_counted_begins_with_the_step() -> None:
    given = arguments("--minutes", "5", "--high", "1")
    run = scaling.Run.of(given, scaling.scalers(16, 180)["pending and running, tuned"], 0)
    # One replica is enough for 1/s.
    assert run.gpu_hours == pytest.approx(5 / 60, rel=0.1)
    assert [moment.desired for moment in run.moments] == [1] * 20
    assert run.backlog_minutes == 0


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "scaling.png"
    assert main(["scaling", "--minutes", "2", "--seeds", "1", "--out", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == " ".join(scaling.HEAD).split()
    assert len(lines) == 1 + 5 + 2
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("rows", "text"), [([("a", "1"), ("bb", "22")], "a    1\nbb  22"), ([("a",)], "a")]
)
def test_tables(rows: Sequence[Sequence[str]], text: str) -> None:
    assert aligned(rows) == text
