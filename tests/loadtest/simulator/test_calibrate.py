"""The grids, the comparison and the command, on an engine that is the model itself."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from loadtest.__main__ import USAGE_ERROR, main
from loadtest.simulator import grids, validate
from loadtest.simulator.engine import Engine, EngineSettings
from loadtest.simulator.fit import fit
from loadtest.simulator.job import Job
from loadtest.simulator.real_engine import RealEngine
from loadtest.simulator.records import write
from loadtest.simulator.step_time import Coefficients, StepTime, Work
from loadtest.simulator.ticks import seconds
from tests.loadtest.simulator.test_fit import records

TRUE = Coefficients(0.002, 1e-5, 1e-4, 1e-7, 1e-8)
GIVEN = EngineSettings(8, 128, 96, 16)
LONGEST = 256


class Slowed:
    """The model with a clock: each step sleeps for as long as it takes."""

    vocabulary = 100

    def __init__(self) -> None:
        self.engine = Engine(GIVEN, StepTime(TRUE))
        self.work = Work(0, 0, 0, 0)

    def add(self, number: int, prompt: Sequence[int], output: int) -> None:
        assert max(prompt) < self.vocabulary
        self.engine.add(Job(number, len(prompt), output), self.engine.now)

    @property
    def idle(self) -> bool:
        return self.engine.idle

    @property
    def preemptions(self) -> int:
        return self.engine.preemptions

    def step(self) -> list[tuple[int, int, bool]]:
        before = {job.number: job.produced for job in self.engine.running}
        begin, at = time.perf_counter(), self.engine.now
        chunks = self.engine.schedule()
        self.work = self.engine.work(chunks)
        self.engine.now += self.engine.time.of(self.work)
        self.engine.update(chunks)
        until = begin + seconds(self.engine.now - at)
        while time.perf_counter() < until:
            time.sleep(0)
        made = [(job, job.produced - before.get(job.number, 0)) for job, _ in chunks]
        return [(job.number, n, job.ended is not None) for job, n in made if n]


def slowed() -> RealEngine:
    return cast("RealEngine", Slowed())


def test_a_grid_sees_all_that_an_engine_can_be_asked_and_the_model_is_found_again() -> None:
    engine, dice = slowed(), np.random.default_rng(0)
    found = grids.measure(engine, grids.grid(GIVEN, LONGEST, dice), dice)
    works = [record.work for record in found]
    assert max(work.decodes for work in works) == GIVEN.max_num_seqs
    assert max(work.prefill for work in works) == GIVEN.max_num_batched_tokens
    assert any(work.prefill and work.decodes for work in works)
    assert any(work.decodes == 1 and work.context > 200 for work in works)
    assert engine.preemptions == 0
    fitted = fit(found).coefficients
    assert fitted.step == pytest.approx(TRUE.step, rel=0.3)
    assert fitted.token == pytest.approx(TRUE.token, rel=0.5)


def test_a_load_on_both_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "LOADS", (0.5,))
    monkeypatch.setattr(validate, "SHAPES", validate.SHAPES[:1])
    step = StepTime(TRUE)
    (found,) = validate.compare(slowed(), GIVEN, step, LONGEST, 3.0)
    assert found.requests > 20
    assert found.model.e2e == pytest.approx(found.real.e2e, rel=0.3)
    assert found.model.itl == pytest.approx(found.real.itl, rel=0.3)


def test_the_figures_of_a_model_run() -> None:
    # One after the other: 32 prompt tokens, then 9 steps of one sequence.
    jobs = [Job(n, 32, 10, n * 10**15) for n in range(20)]
    found = validate.simulated(jobs, GIVEN, StepTime(TRUE))
    first = 0.002 + 32e-5 + 1e-8 * 32 * 16
    rest = sum(0.0021 + 1e-7 * (32 + n) for n in range(9))
    assert found.ttft == pytest.approx(first)
    assert found.itl == pytest.approx(rest / 9, rel=0.005)
    assert found.e2e == pytest.approx(first + rest)
    assert found.rate == pytest.approx(200 / (19 + first + rest))
    assert jobs[0].ended is None


def test_an_error_over_its_limit_is_marked() -> None:
    good = validate.Measured(0.1, 0.01, 1.0, 100.0, 3)
    bad = replace(good, ttft=0.121, itl=0.0109, rate=94.0)
    one = validate.Compared(validate.SHAPES[0], 0.8, 5.0, 99, good, bad)
    name, *cells = one.row()
    assert name == "chat, 80% (5.0/s, 99)"
    assert cells == [
        "100 121 +21%!",
        "10 10.9 +9%",
        "1000 1000 +0%",
        "100 94 -6%!",
        "3 3",
    ]


def test_records_of_a_service_are_fitted_without_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "records.jsonl", tmp_path / "coefficients.json"
    write(source, records())
    assert main(["calibrate", "--records", str(source), "--out", str(out)]) == 0
    assert "400 steps, 0 outliers left out" in capsys.readouterr().out
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["coefficients"]["step"] == pytest.approx(0.004, rel=0.05)
    assert main(["calibrate", "--records", str(source), "--validate", "5"]) == USAGE_ERROR
