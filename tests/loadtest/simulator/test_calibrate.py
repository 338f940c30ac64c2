"""From records to a file of terms; what of a grid is fitted; the real engine's records."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadtest.__main__ import main
from loadtest.errors import UsageError
from loadtest.simulator import calibrate, calibration, fit, grids
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.grids import Cell
from loadtest.simulator.live import Lived, LiveSettings, Planned, started
from loadtest.simulator.records import Chunks, Record, dump

TRUE = dict(zip(fit.TERMS, (2e-3, 1e-3, 2e-5, 5e-5, 1e-7, 2e-8), strict=True))
HEAD = {"kind": "steps", "schema": 1, "model": "m", "vllm_version": "0", "engine": {"engines": 1}}


def steps(count: int) -> list[Record]:
    """A service's: mixed, each as long as the terms say."""
    dice = np.random.default_rng(0)
    values = np.array([TRUE[name] for name in fit.TERMS])
    found: list[Record] = []
    for at in range(count):
        prompt = int(dice.integers(8, 512)) if at % 3 == 0 else 0
        decodes = int(dice.integers(1, 17))
        record = Record(
            at=float(at),
            prefill=prompt,
            decodes=decodes,
            context=decodes * int(dice.integers(16, 900)),
            prompts=((prompt, 0),) if prompt else (),
            gap=1.0,
            running=decodes,
            waiting=0,
        )
        work = Chunks().work(record)
        assert work is not None
        found.append(replace(record, gap=float(np.dot(fit.row(work), values))))
    return found


def write(path: Path, records: Sequence[Record]) -> Path:
    path.write_text("\n".join([json.dumps(HEAD), *map(dump, records)]) + "\n")
    return path


def test_the_records_of_a_service_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "steps", steps(300))
    assert main(["calibrate", "--records", str(path), "--out", str(tmp_path)]) == 0
    *_, name = capsys.readouterr().out.split()
    found = calibration.load(Path(name))
    for term, value in TRUE.items():
        assert found.fit.terms[term].value == pytest.approx(value, rel=1e-3), term
        assert getattr(found.coefficients, term) == found.fit.terms[term].value
    assert (found.model, found.engine, found.environment["vllm"]) == ("m", {"engines": 1}, "0")
    assert found.held_out is not None
    assert (found.held_out.steps, found.fit.errors.steps) == (60, 240)
    assert found.box.most.decodes == 16


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = calibrate.of_records(write(tmp_path / "steps", steps(100)), 0)
    path = tmp_path / "calibration"
    path.write_text(json.dumps(found.dump()))
    assert calibration.load(path) == found


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "calibration", "schema": 9}', "[1]"])
def test_what_is_no_calibration_is_said_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UsageError, match="calibration"):
        calibration.load(path)


def test_too_few_records_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "steps", steps(6))
    assert main(["calibrate", "--records", str(path), "--out", str(tmp_path)]) == 2
    assert "too few" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 16, [1, 2, 4, 8, 16]), (16, 100, [16, 32, 64, 100]), (1, 1, [1]), (16, 10, [10])],
)
def test_doubling(first: int, last: int, expected: list[int]) -> None:
    assert list(grids.doubling(first, last)) == expected


def test_the_grids_fit_into_the_cache() -> None:
    """Of 40 blocks of 16, sixteen sequences have two and a half each."""
    engine = EngineSettings(max_num_seqs=16, kv_blocks=40, block_size=16)
    cells = grids.decode(engine, 512, steps=8)
    assert {cell.count for cell in cells} == {1, 2, 4, 8}
    for cell in cells:
        blocks = -(-(cell.prompt + cell.output) // 16)
        assert cell.count * blocks <= 40


@pytest.mark.parametrize(
    ("cell", "expected"), [(Cell(4, 16, 8), [(0, 4)]), (Cell(1, 16, 1, company=9), [(16, 3)])]
)
def test_steps_of_a_cell(cell: Cell, expected: list[tuple[int, int]]) -> None:
    """Of a batch those in which all decode, of a prompt those that compute it."""
    step = Record(1.0, 0, 4, 100, (), 0.01, 4, 0)
    coming = replace(step, prefill=16, decodes=3, prompts=((16, 0),))
    found = calibrate._of_cell([coming, step, replace(step, decodes=2)], cell, number=5)
    assert [(one.work.prefill, one.work.decodes) for one in found] == expected
    assert {one.cell for one in found} == {5}


def lived(prompt: int, sent: float, scheduled: float, *ends: float) -> Lived:
    planned = Planned(0.0, [0] * prompt, len(ends))
    return Lived(planned, 0.0, sent, scheduled, [0.002 + end for end in ends], list(ends))


AT_WORK = lived(16, -0.5, 0.0, *(0.01 * n for n in range(1, 9)))
"""Steps of 10 ms."""


def test_the_front_end_is_told_from_requests_that_met_an_engine_at_work() -> None:
    """They came in the middle of a step, and were sent 1 ms and more before."""
    asked = [lived(n, 0.024 - 1e-5 * n, 0.0301, 0.04) for n in (16, 64, 256, 512)]
    late = lived(100, 0.001, 0.0601, 0.07)  # no slot was free
    front = calibrate._front([calibrate.Round([], [AT_WORK, *asked, late], asked)])
    assert front.accept == pytest.approx(0.0011)
    assert front.accept_token == pytest.approx(1e-5)
    assert front.emit == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("sent", "scheduled"), [(0.002, 0.005), (0.002, 0.0101), (0.081, 0.082)], ids=str
)
def test_an_engine_that_was_not_at_work_tells_nothing_of_the_front_end(
    sent: float, scheduled: float
) -> None:
    """It was begun with beside the first step or after that, or when the other had ended."""
    assert list(calibrate.waits([AT_WORK, lived(16, sent, scheduled, 0.09)])) == []


def test_lengths_of_the_mixture() -> None:
    found = grids.exponential(2000, 128, 40, 200, np.random.default_rng(1))
    prompts, outputs = np.array(found).T
    assert (prompts >= 1).all()
    assert (outputs >= 1).all()
    assert (prompts + outputs <= 200).all()
    assert outputs.mean() == pytest.approx(40, rel=0.15)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.usefixtures("environment_kept")
async def test_the_real_engines_records_are_what_was_asked(tiny_model: Path) -> None:
    """Three prompts, two of them in chunks beside others that decode; every token is accounted."""
    settings = LiveSettings(tiny_model, 4, max_num_batched_tokens=64, max_model_len=256)
    asked = [(40, 12), (150, 6), (100, 9)]
    async with started(settings) as live:
        plan = [Planned(0.0, list(range(20, 20 + p)), o) for p, o in asked]
        lived = await live.serve(plan)
        steps = live.take()
        assert live.engine.kv_blocks > 100
    assert [len(one.times) for one in lived] == [12, 6, 9]
    assert all(one.sent <= one.scheduled <= one.made[0] <= one.times[0] for one in lived)
    assert sum(step.prefill for step in steps) == 290
    assert sum(step.decodes + len(step.prompts) for step in steps) == 27
    assert [step.running + step.waiting for step in steps][-1] == 0
    # Of each sequence that decodes: its prompt and what it has made, once a step.
    contexts = sum(p + made for p, o in asked for made in range(o - 1))
    assert sum(step.context or 0 for step in steps) == contexts
    # Twice X does not depend on how a prompt was cut: it is the square of its length.
    chunks = Chunks()
    works = [work for step in steps if (work := chunks.work(step)) is not None]
    assert sum(work.attention for work in works) == sum(p * p for p, _ in asked)
    assert all(step.gap is not None for step in steps if step.decodes)
