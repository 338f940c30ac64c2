"""Static against continuous on the model: by the bound where all steps take the same time."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from loadtest import arms
from loadtest.__main__ import USAGE_ERROR, main
from loadtest.simulator import ratios
from loadtest.simulator.step_time import Coefficients, StepTime

STEADY = Coefficients(0.01, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "ROUNDS", 4)


def test_no_ratio_is_above_the_bound_and_of_fixed_lengths_there_is_none() -> None:
    fixed = arms.synthetic("fixed", 8, 16, 0)
    assert ratios.ratio(fixed, 4, StepTime(STEADY)).value == pytest.approx(1, abs=0.02)
    spread = arms.synthetic("exponential", 8, 16, 0)
    found = ratios.ratio(spread, 8, StepTime(STEADY))
    bound = arms.bound(spread.outputs, 8)
    assert 0.9 * bound < found.value <= 1.05 * bound
    assert found.static_steps == pytest.approx(100)


def test_steps_that_cost_by_the_sequence_bring_them_together() -> None:
    spread = arms.synthetic("exponential", 8, 16, 0)
    by_sequence = ratios.ratio(spread, 8, StepTime(Coefficients(1e-3, 0, 1e-2, 0, 0)))
    assert by_sequence.value < 1.2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, measured = tmp_path / "c.json", tmp_path / "measured.json"
    path.write_text(json.dumps(asdict(STEADY)))
    cell = {
        "workload": "exponential",
        "batch": 4,
        "closed": {"tokens_per_s": {"ratio": {"value": 9.0}}},
    }
    measured.write_text(json.dumps({"cells": [cell]}))
    arguments = ["ratios", "--coefficients", str(path), "--batch", "4"]
    assert main([*arguments, "--measured", str(measured)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][0] == "fixed"
    assert rows[1][-1] == "-"
    assert rows[2][-2] == "9.00"
    assert rows[2][-1].endswith("!")
    measured.write_text("{}")
    assert main([*arguments, "--measured", str(measured)]) == USAGE_ERROR
    assert main([*arguments, "--measured", str(tmp_path / "none")]) == USAGE_ERROR
    assert np.isfinite(float(rows[2][3]))
