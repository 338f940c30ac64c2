"""Predicted beside measured: what counts as a miss, and how a run is scaled to its own pace."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import batching
from loadtest.__main__ import main
from loadtest.errors import UsageError
from loadtest.simulator import ratios, validate
from loadtest.simulator.live import Lived, Planned
from loadtest.simulator.replay import Figures
from loadtest.simulator.step_time import Coefficients
from loadtest.simulator.validation import Run, progress, render, within

FIGURES = Figures(ttft=0.1, itl=0.01, e2e=1.0, tokens_per_s=1000.0, preemptions=20)
RUN = Run("fixed", 0.8, 40.0, 300, FIGURES, FIGURES, FIGURES, 1.0, 0.01, 0.002, [])


@pytest.mark.parametrize(
    ("name", "predicted", "holds"),
    [
        ("ttft", 0.119, True),
        ("ttft", 0.121, False),
        ("ttft", 0.079, False),
        ("itl", 0.0109, True),
        ("itl", 0.0112, False),
        ("e2e", 0.91, True),
        ("e2e", 0.89, False),
        ("tokens_per_s", 1049.0, True),
        ("tokens_per_s", 1060.0, False),
        ("preemptions", 55, True),
        ("preemptions", 70, False),
        ("preemptions", 6, True),
        ("preemptions", 3, False),
    ],
)
def test_how_far_off_a_prediction_may_be(name: str, predicted: float, holds: bool) -> None:
    run = replace(RUN, predicted=replace(FIGURES, **{name: predicted}))  # type: ignore[arg-type]
    assert within(name, run) is holds
    assert ("MISS" in render([run])) is not holds
    assert ("missed" in progress(run)) is not holds


def test_a_few_preemptions_are_of_no_order() -> None:
    few = replace(FIGURES, preemptions=0)
    assert within("preemptions", replace(RUN, predicted=few, measured=replace(few, preemptions=9)))


def test_the_table_tells_misses_and_what_was_extrapolated() -> None:
    off = replace(RUN, predicted=replace(FIGURES, ttft=0.2), outside=["context"])
    text = render([RUN, off])
    assert "TTFT p50, ms: 1 of 2 within 20%" in text
    assert "E2E p50, ms: 2 of 2 within 10%" in text
    assert "beyond what was calibrated: context" in text


def test_figures_of_a_run_are_from_when_requests_were_handed_over() -> None:
    def lived(sent: float, *times: float) -> Lived:
        return Lived(Planned(0.0, [1], len(times)), sent - 0.5, sent, sent, list(times))

    found = validate.figures([lived(10.0, 10.1, 10.2, 10.4), lived(11.0, 11.3, 11.4, 12.0)], 3)
    assert found.ttft == pytest.approx(0.2)
    assert found.e2e == pytest.approx(0.7)
    assert found.itl == pytest.approx(0.15)  # of 0.1, 0.2, 0.1 and 0.6
    assert found.tokens_per_s == pytest.approx(6 / 2.0)
    assert found.preemptions == 3


def test_tokens_that_came_together_share_their_gap() -> None:
    lived = Lived(Planned(0.0, [1], 4), 0.0, 0.0, 0.0, [1.0, 1.3, 1.3, 1.3])
    assert lived.gaps == pytest.approx([0.1, 0.1, 0.1])
    assert math.isnan(validate.figures([Lived(Planned(0.0, [1], 1), 0, 0, 0, [1.0])], 0).itl)


def test_the_capacity_is_that_of_full_slots() -> None:
    """Two slots; what the first batch made, and what is made when the last have no successors."""

    def lived(*times: float) -> Lived:
        return Lived(Planned(0.0, [1], len(times)), 0.0, 0.0, 0.0, list(times))

    first = [lived(0.5, 1.0), lived(0.7, 2.0)]
    then = [lived(2.5, 3.0), lived(3.5, 4.0), lived(4.5, 9.0)]
    assert validate.rate_when_full([*then, *first], 2) == pytest.approx(4 / 2.0)


def test_only_the_terms_of_a_step_are_scaled() -> None:
    given = Coefficients(
        1.0, 2.0, 3.0, 4.0, 5.0, accept=6.0, accept_token=7.0, emit=8.0, prompt=9.0
    )
    found = validate.scaled(given, 0.5)
    assert found == Coefficients(
        0.5, 1.0, 1.5, 2.0, 2.5, accept=6.0, accept_token=7.0, emit=8.0, prompt=4.5
    )


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.usefixtures("environment_kept")
def test_the_real_engine_is_measured_and_predicted(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Grids, capacity, a run and its prediction; how near it comes is not for a busy machine."""
    engine = ("--max-num-seqs", "2", "--max-num-batched-tokens", "128", "--max-model-len", "128")
    load = ("--loads", "0.2", "--shapes", "fixed", "--seconds", "2")
    lengths = ("--prompt-tokens", "16", "--output-tokens", "8", "--out", str(tmp_path))
    assert main(["validate", "--model", str(tiny_model), *engine, *load, *lengths]) in (0, 1)
    *_, name = capsys.readouterr().out.split()
    (run,) = json.loads(Path(name).read_text())["runs"]
    predicted, measured = run["predicted"], run["measured"]
    assert run["requests"] > 1
    assert 0.1 < predicted["tokens_per_s"] / measured["tokens_per_s"] < 10  # what comes, is served
    for one in (predicted, measured):
        assert 0 < one["ttft"] < one["e2e"]
        assert 0 < one["itl"] < one["e2e"]


# -- static against continuous

STEP_ALONE = Coefficients(step=0.010, token=0.0, decode=0.0, context=0.0, attention=0.0)


def measured(ratio: float, **settings: object) -> dict[str, object]:
    """A result of `batching` whose ratios are all the same."""
    given = batching.Settings(batch=(4,), rounds=4, requests=40, **settings)  # type: ignore[arg-type]
    found = {"ratio": {"value": ratio, "low": ratio, "high": ratio}}
    cells = [
        {
            "workload": name,
            "batch": 4,
            "closed": {"tokens_per_s": found, "requests_per_s_of_whole_rounds": found},
            "open": {"e2e_s": {"mean": found, "p50": found}},
        }
        for name in ("fixed", "exponential")
    ]
    return {"kind": "batching", "schema": 1, "settings": given.dump(), "cells": cells}


def test_with_equal_steps_the_ratio_is_the_bound_of_the_lengths() -> None:
    """A step that costs the same for any batch: what is left is the longest over the mean."""
    fixed, exponential = ratios.compare(measured(1.0), STEP_ALONE)
    assert fixed[0].simulated == pytest.approx(1.0, abs=0.06)
    settings = batching.Settings(batch=(4,), rounds=4, requests=40)
    workload = batching.workloads(settings)[1]
    bounds = []
    for number in range(4):
        dice = batching.dice_of(settings, workload, 4, number)
        _, outputs, _ = batching.drawn(workload, 40, None, dice)
        bounds.append(outputs.reshape(-1, 4).max(axis=1).mean() / outputs.mean())
    assert exponential[0].simulated == pytest.approx(sorted(bounds)[1], rel=0.15)
    assert exponential[0].simulated > 1.4


def test_the_same_seed_serves_the_same_requests() -> None:
    first, second = (list(ratios.compare(measured(1.0), STEP_ALONE)) for _ in range(2))
    assert first == second
    other = list(ratios.compare(measured(1.0, seed=1), STEP_ALONE))
    assert other[1][0].simulated != first[1][0].simulated


def test_misses_have_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms = {"value": 0.0, "low": 0.0, "high": 0.0}
    work = {"prefill": 9, "decodes": 9, "context": 9, "attention": 9}
    names = ("prompt", "token", "decode", "context", "attention")
    content = {
        "schema": 1,
        "kind": "calibration",
        "model": "m",
        "engine": {},
        "fit": {
            "terms": {"step": terms | {"value": 0.01}} | dict.fromkeys(names, terms),
            "box": {"least": work, "most": work},
            "errors": {"median": 0.0, "p90": 0.0, "total": 0.0, "steps": 9},
            "strange": 0.0,
            "strange_time": 0.0,
        },
        "front": {"accept": 0.0, "accept_token": 0.0, "emit": 0.0},
        "held_out": None,
        "environment": {},
    }
    known, result = tmp_path / "calibration", tmp_path / "batching"
    known.write_text(json.dumps(content))
    command = ["ratios", "--batching", str(result), "--calibration", str(known)]
    result.write_text(json.dumps(measured(9.0)))
    assert main(command) == 1
    assert "0 of 8 within 10%" in capsys.readouterr().out
    result.write_text("{}")
    assert main(command) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "run"}'])
def test_what_is_no_result_of_batching_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UsageError, match="batching"):
        ratios._read(path)
