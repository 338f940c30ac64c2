"""Static against continuous: only admission differs, and no ratio can be above its bound."""

import argparse
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import arms, batching, batching_report
from loadtest.arms import ARMS, Cell, Engine, Job, Pair, Served, Workload
from loadtest.bootstrap import mean
from loadtest.errors import UsageError
from tests.rig.environment import forget_services

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


class Slots:
    """An engine with slots and no model: one token a step for each that runs."""

    def __init__(self, slots: int, cut: int = 0) -> None:
        self.slots = slots
        self.cut = cut
        self.waiting: deque[list[int]] = deque()
        self.running: list[list[int]] = []

    def add(self, index: int, job: Job) -> None:
        self.waiting.append([index, job.output_tokens - self.cut])

    def step(self) -> list[tuple[int, int, bool]]:
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        for request in self.running:
            request[1] -= 1
        outputs = [(index, 1, left == 0) for index, left in self.running]
        self.running = [request for request in self.running if request[1]]
        return outputs


@dataclass
class Spy:
    """What an arm does to an engine, step by step.

    Attributes:
        groups: (requests that were in the engine, requests that were added), where any were.
        emitted: tokens of each step.
        added_at: seconds since the spy was made.

    """

    engine: Engine
    groups: list[tuple[int, int]] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    added_at: list[float] = field(default_factory=list)
    inside: int = 0
    added: int = 0
    start: float = field(default_factory=time.perf_counter)

    def add(self, index: int, job: Job) -> None:
        assert index == len(self.added_at)
        self.added += 1
        self.added_at.append(time.perf_counter() - self.start)
        self.engine.add(index, job)

    def step(self) -> Sequence[tuple[int, int, bool]]:
        if self.added:
            self.groups.append((self.inside, self.added))
        self.inside, self.added = self.inside + self.added, 0
        outputs = self.engine.step()
        self.inside -= sum(last for _, _, last in outputs)
        self.emitted.append(sum(tokens for _, tokens, _ in outputs))
        return outputs


def jobs_of(lengths: Sequence[int]) -> list[Job]:
    return [Job([1, 2, 3], length) for length in lengths]


def spied(arm: str, lengths: Sequence[int], batch: int) -> tuple[Spy, Served]:
    spy = Spy(Slots(batch))
    return spy, arms.serve(spy, jobs_of(lengths), ARMS[arm], batch)


# -- the bound


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_bound_is_that_of_all_batches_that_can_be_drawn(batch: int) -> None:
    lengths = np.array([5, 1, 9, 1, 2])
    longest = [max(drawn) for drawn in itertools.product(lengths.tolist(), repeat=batch)]
    assert arms.bound(lengths, batch) == pytest.approx(np.mean(longest) / lengths.mean())


def test_the_bound_of_fixed_lengths_is_one() -> None:
    lengths = arms.synthetic("fixed", 8, 16, seed=0).outputs
    assert arms.bound(lengths, 32) == pytest.approx(1)
    assert arms.bound_of_run(lengths[:64], 32) == 1


def test_the_bound_of_a_run_is_of_its_own_batches() -> None:
    assert arms.bound_of_run(np.array([1, 3, 2, 2]), 2) == pytest.approx(2.5 / 2)
    assert arms.bound_of_run(np.array([1, 2, 3, 2]), 2) == pytest.approx(2.5 / 2)
    assert arms.bound_of_run(np.array([1, 2, 2, 3]), 4) == pytest.approx(3 / 2)


# -- admission

BATCHES = st.integers(1, 5).flatmap(
    lambda batch: st.tuples(
        st.just(batch),
        st.integers(1, 4).flatmap(
            lambda n: st.lists(st.integers(1, 9), min_size=n * batch, max_size=n * batch)
        ),
    )
)


@given(BATCHES)
def test_static_admits_whole_batches_into_an_idle_engine_only(
    drawn: tuple[int, list[int]],
) -> None:
    batch, lengths = drawn
    spy, served = spied("static", lengths, batch)
    assert spy.groups == [(0, batch)] * (len(lengths) // batch)
    longest = np.reshape(lengths, (-1, batch)).max(axis=1)
    assert len(spy.emitted) == longest.sum()
    assert served.tokens == sum(lengths)


@given(BATCHES)
def test_continuous_keeps_every_slot_taken_while_it_can(drawn: tuple[int, list[int]]) -> None:
    batch, lengths = drawn
    spy, served = spied("continuous", lengths, batch)
    full = list(itertools.takewhile(lambda tokens: tokens == batch, spy.emitted))
    assert served.full_tokens == sum(full)
    assert all(tokens < batch for tokens in spy.emitted[len(full) :])
    assert served.tokens == sum(spy.emitted) == sum(lengths)


@given(BATCHES)
def test_in_steps_the_ratio_is_the_bound(drawn: tuple[int, list[int]]) -> None:
    batch, lengths = drawn
    continuous, _ = spied("continuous", lengths, batch)
    static, served = spied("static", lengths, batch)
    ratio = continuous.emitted[0] / (served.tokens / len(static.emitted))
    assert ratio == pytest.approx(arms.bound_of_run(np.array(lengths), batch))


def test_a_freed_slot_is_taken_at_once_by_continuous_and_by_static_after_the_longest() -> None:
    lengths = [2, 2, 2, 9, 3, 3, 3, 3]
    continuous, _ = spied("continuous", lengths, 4)
    static, _ = spied("static", lengths, 4)
    assert continuous.emitted == [4, 4, 4, 4, 4, 2, 2, 2, 1]
    assert static.emitted == [4, 4, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4]


def test_a_closed_loop_has_two_clients_for_each_slot() -> None:
    spy, _ = spied("continuous", [1] * 12, 3)
    assert spy.groups[0] == (0, 6)
    assert all(inside + added <= 6 for inside, added in spy.groups)


@pytest.mark.parametrize("arm", ARMS)
def test_an_open_loop_hands_nothing_over_before_it_is_due(arm: str) -> None:
    due = np.array([0.0, 0.0, 0.0, 0.2, 0.4])
    spy = Spy(Slots(2))
    served = arms.serve(spy, jobs_of([1, 2, 3, 1, 1]), ARMS[arm], 2, due=due)
    assert all(at >= d for at, d in zip(spy.added_at, due, strict=True))
    assert served.seconds >= 0.4
    assert all(0 <= e2e < served.seconds for e2e in served.e2e)
    in_static = [(0, 2), (0, 1), (0, 1), (0, 1)]
    assert spy.groups == (in_static if arm == "static" else [(0, 3), (0, 1), (0, 1)])


def test_latency_is_measured_from_when_a_request_was_due() -> None:
    class Slow(Slots):
        def step(self) -> list[tuple[int, int, bool]]:
            time.sleep(0.02)
            return super().step()

    served = arms.serve(Slow(1), jobs_of([3, 1]), ARMS["continuous"], 1, due=np.array([0.0, 0.01]))
    assert served.e2e[1] >= 0.08 - 0.01


def test_tokens_other_than_planned_stop_the_comparison() -> None:
    with pytest.raises(RuntimeError, match="4 tokens of 6 planned"):
        arms.serve(Slots(2, cut=1), jobs_of([3, 3]), ARMS["static"], 2)


# -- ratios


def served(seconds: float, e2e: Sequence[float] = (1.0,)) -> Served:
    return Served(seconds, tokens=100, full_seconds=seconds, full_tokens=100, e2e=e2e)


def cell_of(ratios: Sequence[float], bound: float) -> Cell:
    pairs = [Pair(static=served(ratio), continuous=served(1.0), bound=bound) for ratio in ratios]
    return Cell(Workload("w", np.array([1]), np.array([7])), 4, pairs, 1.0, pairs)


def test_throughput_is_of_full_slots_and_whole_rounds_are_told_besides() -> None:
    continuous = Served(4.0, tokens=100, full_seconds=2.0, full_tokens=80, e2e=[1.0] * 10)
    static = Served(5.0, tokens=100, full_seconds=3.0, full_tokens=90, e2e=[1.0] * 10)
    pair = Pair(static=static, continuous=continuous, bound=2.0)
    assert pair.throughput == (40, 20)
    assert pair.whole == (2.5, 2)


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    found = arms.compared([(2.0, 1.0), (9.0, 3.0), (40.0, 10.0)])
    assert (found.continuous, found.static, found.ratio.value) == (9, 3, 3)
    assert 2 <= found.ratio.low <= 3 <= found.ratio.high <= 4


def test_latencies_are_pooled_over_rounds_and_rounds_are_redrawn_in_pairs() -> None:
    static = np.random.default_rng(0).exponential(1, (6, 50)) * np.arange(1, 7)[:, None]
    found = arms.pooled(static / 2, static, mean)
    assert found.static == pytest.approx(static.mean())
    assert found.ratio.value == found.ratio.low == found.ratio.high == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ratios", "above"),
    [
        ([1.5] * 6, False),
        ([2.0, 2.1, 1.9, 2.0, 2.1, 1.9], False),
        ([2.03, 2.02, 2.02, 2.03, 2.02, 2.02], False),
        ([2.1, 2.2, 2.3, 2.1, 2.2, 2.3], True),
    ],
)
def test_a_ratio_above_the_bound_is_told(ratios: Sequence[float], above: bool) -> None:
    cell = cell_of(ratios, bound=2.0)
    assert cell.above is above
    text = batching_report.render([cell])
    assert ("differ in something else" in text) is above


def test_there_is_no_p99_of_few_requests() -> None:
    assert "p99" not in cell_of([1.5] * 6, 2.0).latencies
    pairs = [Pair(served(1.0, [1.0] * 150), served(1.0, [1.0] * 150), 1.0)] * 2
    cell = Cell(Workload("w", np.array([1]), np.array([7])), 4, pairs, 1.0, pairs)
    assert cell.latencies["p99"].static == 1


# -- input


def test_a_trace_is_brought_to_the_means_or_scaled(tmp_path: Path) -> None:
    path = tmp_path / "code.csv"
    rows = ["2023-11-16 18:00:00.0,1000,10", "2023-11-16 18:00:01.0,3000,1"]
    path.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    found = arms.of_trace(path, None, 20, 11)
    assert found.name == "code"
    assert found.scales == (0.01, 2.0)
    assert (found.prompts.tolist(), found.outputs.tolist()) == ([10, 30], [20, 2])
    scaled = arms.of_trace(path, 0.1, 20, 11)
    assert (scaled.prompts.tolist(), scaled.outputs.tolist()) == ([100, 300], [1, 1])


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    batching.add_arguments(parser)
    return parser.parse_args(words)


def test_every_default_is_a_setting() -> None:
    assert batching.Settings.of(arguments()) == batching.Settings()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "missing.csv"], "missing.csv: No such file"),
        (["--model", "missing"], "missing: no model is there"),
        (["--seed", "-1"], "--seed must not be negative"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        batching.main(arguments(*words))
    assert "\n" not in str(caught.value)


def test_without_vllm_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UsageError, match="vLLM itself, which cannot be imported"):
        batching.main(arguments("--out", str(tmp_path)))


# -- the real engine

BATCH = 4
WORKLOAD = Workload("w", np.array([5, 30, 60, 12]), np.array([3, 17, 40, 8]))


def drive(model: Path) -> dict[str, tuple[Spy, Served]]:
    """Both arms on one engine, in a process of its own."""
    engine = batching.Vllm(batching.Settings(), model, [WORKLOAD], BATCH)
    prompts, outputs = WORKLOAD.draw(6 * BATCH, np.random.default_rng(0))
    jobs = [Job([9] * p, n) for p, n in zip(prompts.tolist(), outputs.tolist(), strict=True)]
    found = {}
    for arm in ARMS:
        spy = Spy(engine)
        found[arm] = (spy, arms.serve(spy, jobs, ARMS[arm], BATCH))
        spy.engine = Slots(0)
    engine.close()
    return found


def command(words: Sequence[str]) -> tuple[int, str]:
    """The command in a process of its own: its status and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = batching.main(arguments(*words))
    return status, printed.getvalue()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """The engine changes the process that it runs in: threads, environment, signals."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=forget_services) as pool:
        yield pool


@pytest.mark.engine
@pytest.mark.slow
def test_the_real_engine_makes_the_same_tokens_in_both_arms(
    elsewhere: ProcessPoolExecutor, tiny_model: Path
) -> None:
    found = elsewhere.submit(drive, tiny_model).result()
    _, outputs = WORKLOAD.draw(6 * BATCH, np.random.default_rng(0))
    static, static_served = found["static"]
    continuous, continuous_served = found["continuous"]
    assert static_served.tokens == continuous_served.tokens == outputs.sum()
    assert static.groups == [(0, BATCH)] * 6
    assert continuous.groups[0] == (0, 2 * BATCH)
    # No prompt takes more than a step, and no step leaves a slot free that could be taken.
    assert len(static.emitted) == outputs.reshape(-1, BATCH).max(axis=1).sum()
    full = list(itertools.takewhile(lambda tokens: tokens == BATCH, continuous.emitted))
    assert continuous_served.full_tokens == sum(full)
    assert len(continuous.emitted) < len(static.emitted)
    in_steps = BATCH / (static_served.tokens / len(static.emitted))
    assert in_steps == pytest.approx(arms.bound_of_run(outputs, BATCH))


@pytest.mark.engine
@pytest.mark.slow
def test_the_command_measures_reports_and_keeps_what_it_found(
    elsewhere: ProcessPoolExecutor, tmp_path: Path
) -> None:
    trace, out = tmp_path / "code.csv", tmp_path / "out"
    rows = [f"2023-11-16 18:00:{n:02}.0,{100 * n + 100},{n % 7 + 1}" for n in range(30)]
    trace.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    words = ["--rounds", "2", "--requests", "6", "--batch", "2", "4", "--output-tokens", "5"]
    words += ["--trace", str(trace), "--out", str(out)]
    status, printed = elsewhere.submit(command, words).result()
    (path,) = out.glob("*.json")
    assert path.with_suffix(".png").stat().st_size > 10_000
    found = json.loads(path.read_text(encoding="utf-8"))
    cells = found["cells"]
    names = [(cell["batch"], cell["workload"]) for cell in cells]
    assert names == list(itertools.product([2, 4], ["fixed", "exponential", "code"]))
    assert status == int(any(cell["above_bound"] for cell in cells))
    for cell in cells:
        for pair in cell["closed"]["rounds"] + cell["open"]["rounds"]:
            assert pair["static"]["tokens"] == pair["continuous"]["tokens"]
            assert len(pair["static"]["e2e"]) == (6 if cell["batch"] == 2 else 8)
        assert cell["workload"] in printed
    assert str(path) in printed
    assert "code: lengths ×" in printed
    assert found["settings"]["requests"] == 6
    assert {"vllm", "torch", "processor"} <= found["environment"].keys()
