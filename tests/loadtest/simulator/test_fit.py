"""Coefficients from records: found again, none negative, outliers left out, errors told."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from loadtest.errors import UsageError
from loadtest.simulator.fit import NAMES, dump, fit, load, warnings
from loadtest.simulator.records import Record
from loadtest.simulator.step_time import Box, Coefficients, StepTime, Work
from loadtest.simulator.ticks import seconds

TRUE = Coefficients(0.004, 2e-5, 1e-4, 2e-8, 3e-9)


def records(
    count: int = 400, noise: float = 0.03, coefficients: Coefficients = TRUE
) -> list[Record]:
    dice, time = np.random.default_rng(0), StepTime(coefficients)
    found = []
    for _ in range(count):
        prompt, decodes = (int(n) for n in dice.integers(0, (1000, 64)))
        work = Work(prompt, decodes, decodes * int(dice.integers(1, 2000)), prompt * prompt)
        taken = seconds(time.of(work)) * float(dice.normal(1, noise))
        found.append(Record(work, taken))
    return found


def test_coefficients_are_found_again_within_their_errors() -> None:
    found = fit(records())
    for name in NAMES:
        value, true, error = (
            getattr(found.coefficients, name),
            getattr(TRUE, name),
            found.errors[name],
        )
        assert abs(value - true) < 4 * error
        assert error < 0.3 * true
    assert found.median_error == pytest.approx(0.02, abs=0.01)
    assert (found.kept, found.dropped) == (400, 0)


def test_no_coefficient_is_negative() -> None:
    found = fit(records(noise=0.3, coefficients=Coefficients(0.01, 1e-6, 0, 0, 0)))
    assert min(asdict(found.coefficients).values()) >= 0


def test_steps_that_were_held_up_are_left_out() -> None:
    held_up = [Record(r.work, r.seconds * 30) for r in records()[:20]]
    found = fit([*records(), *held_up])
    assert found.dropped == 20
    assert found.coefficients == fit(records()).coefficients


def test_too_few() -> None:
    with pytest.raises(UsageError, match="19 steps are too few"):
        fit(records(19))


def test_what_was_seen_is_kept_and_more_is_told() -> None:
    found = fit(records())
    most = Work(*(max(getattr(r.work, n) for r in records()) for n in asdict(Work(0, 0, 0, 0))))
    assert found.box.most == most
    assert list(warnings(found.box, most)) == []
    more = Work(most.prefill, most.decodes + 1, most.context, most.attention)
    (warning,) = warnings(found.box, more)
    assert "decodes up to 64, but the fit has seen at most 63" in warning
    assert list(warnings(None, more)) == []


def test_a_file_of_coefficients(tmp_path: Path) -> None:
    path, found = tmp_path / "c.json", fit(records())
    path.write_text(json.dumps(dump(found)))
    assert load(path) == (found.coefficients, found.box)
    path.write_text(json.dumps(asdict(TRUE)))
    assert load(path) == (TRUE, None)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"step": 1}', '{"coefficients": {"steps": 1}}'])
def test_a_file_of_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"c\.json: no coefficients"):
        load(path)
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none")


def test_coefficients_make_sense() -> None:
    with pytest.raises(ValueError, match="no coefficient is negative"):
        Coefficients(1, -1, 0, 0, 0)
    with pytest.raises(ValueError, match="a step takes time"):
        Coefficients(0, 1, 0, 0, 0)


def test_a_box_holds_the_least_and_the_most() -> None:
    box = Box.around([Work(1, 9, 3, 4), Work(5, 2, 7, 0)])
    assert (box.least, box.most) == (Work(1, 2, 3, 0), Work(5, 9, 7, 4))
