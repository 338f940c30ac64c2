"""Sweeps: who is measured at which rate, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import options, sweep
from loadtest.errors import UsageError
from loadtest.metrics import Slo
from loadtest.options import Rate
from loadtest.plan import Load, Spec
from loadtest.result import Result
from loadtest.servers import Server
from loadtest.settings import Run
from loadtest.verdict import Grade, Harness, Verdict
from tests.loadtest import factory

A, B = Server("first", "http://a"), Server("second", "http://b")
RUN = Run(name="n", spec=Spec(load=Load(rate=1), seed=7), slo=Slo({"ttft": 1.0}), capacity=10.0)
RATES = [Rate(1, relative=True), Rate(30), Rate(5, relative=True)]


class Fake:
    """A server that keeps its goodput beyond its capacity, and one that loses it."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __call__(self, run: Run, directory: Path) -> tuple[Result, Path]:
        self.runs.append(run)
        rate, keeps = run.spec.load.rate, run.target.base_url == A.base_url
        good = min(rate, 10.0) if keeps or rate <= 10 else 1.0
        summary = {
            "goodput": {
                "requests_per_s": good,
                "output_tokens_per_s": 100 * good,
                "share_of_offered": good / rate,
            },
            "latency_s": {"itl": {"mean": 0.01 if keeps else None}},
            "offered_per_s": rate,
            "requests_per_s": min(rate, 10.0),
            "rejection_s": {"p99": 0.02 if keeps and rate > 10 else None},
        }
        grade = Verdict(Grade.VALID, ()) if rate < 50 else Verdict(Grade.DEGRADED, ("late",))
        return replace(factory.result(count=1), run=run, summary=summary, verdict=grade), directory


def test_every_server_sees_every_rate_with_the_same_plan(tmp_path: Path) -> None:
    fake = Fake()
    sweep.measure(RUN, [A, B], RATES, tmp_path, fake)
    seen = [(r.target.base_url[-1], r.spec.load.rate, r.spec.seed) for r in fake.runs]
    assert seen == [
        ("a", 10, 7), ("b", 10, 7), ("b", 30, 8), ("a", 30, 8), ("a", 50, 9), ("b", 50, 9),
    ]  # fmt: skip


def test_rounds_have_plans_and_an_order_of_their_own(tmp_path: Path) -> None:
    fake = Fake()
    sweep.measure(RUN, [A, B], RATES, tmp_path, fake, 1)
    seen = [(r.target.base_url[-1], r.spec.seed) for r in fake.runs]
    assert seen == [("b", 10), ("a", 10), ("a", 11), ("b", 11), ("b", 12), ("a", 12)]


def test_the_table_gives_goodput_as_a_share_of_the_best(tmp_path: Path) -> None:
    cells = sweep.measure(RUN, [A, B], RATES, tmp_path, Fake())
    text = sweep.render(RUN, cells)
    first, second, tokens, _, sequences, none = (
        line.split() for line in text.splitlines() if line.startswith(("first", "second"))
    )
    assert first == ["first", *["10.00", "(100.0", "%)"] * 3]
    assert second[4:] == ["1.000", "(10.00", "%)"] * 2
    assert tokens == ["first", *["1000", "(100.0", "%)"] * 3]
    assert sequences == tokens[:1] + [word.replace("1000", "10.00") for word in tokens[1:]]
    assert none[1:] == ["0", "(0", "%)"] * 3
    assert "2 of 6 runs are not valid" in text
    assert "20.00 ms; degraded; late" in sweep.line(cells[4])


def test_rounds_are_pooled(tmp_path: Path) -> None:
    cells = sweep.measure(RUN, [A], RATES[:1], tmp_path, Fake())
    slow = replace(cells[0].result, summary={"goodput": {"requests_per_s": 4.0}})
    assert sweep.pooled([*cells, replace(cells[0], result=slow)]) == {"first": {"1x": 7.0}}


def test_what_is_written_says_what_was_measured(tmp_path: Path) -> None:
    cells = sweep.measure(RUN, [A], RATES, tmp_path, Fake())
    found = json.loads(json.dumps(sweep.dump(RUN, cells)))
    assert [cell["rate"] for cell in found["cells"]] == ["1x", "30/s", "5x"]
    assert found["settings"]["capacity"] == 10.0


def test_an_interrupted_sweep_ends(tmp_path: Path) -> None:
    def execute(run: Run, directory: Path) -> tuple[Result, Path]:
        return replace(factory.result(count=1), harness=Harness(interrupted=True)), directory

    with pytest.raises(KeyboardInterrupt):
        sweep.measure(RUN, [A], RATES, tmp_path, execute)


@pytest.mark.parametrize(
    ("words", "reason"),
    [("", "needs --slo"), ("--slo ttft=1 --concurrency 5", "a load with one rate")],
)
def test_what_cannot_be_swept(words: str, reason: str) -> None:
    parser = options.Parser("sweep", "")
    sweep.add_arguments(parser)
    with pytest.raises(UsageError, match=reason):
        sweep.main(parser.parse_args(words.split()))
