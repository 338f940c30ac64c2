"""Searches for the highest rate: where they probe, what they believe and what they answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import options, search
from loadtest.errors import UsageError
from loadtest.metrics import Slo
from loadtest.plan import Load, Spec
from loadtest.result import Result
from loadtest.search import Answer, Bracket, Goal
from loadtest.settings import Run
from loadtest.verdict import Grade, Harness, Verdict
from tests.loadtest import factory

RUN = Run(
    name="n",
    spec=Spec(load=Load("gamma", cv=2, duration_s=9), seed=40),
    slo=Slo({"ttft": 1.0}),
)
VALID = Verdict(Grade.VALID, ())
DOUBTFUL = Verdict(Grade.DEGRADED, ("sent late",))


def measured(share: float, verdict: Verdict = VALID) -> Result:
    summary = {"goodput": {"share_of_offered": share}, "output_tokens_per_s": 640.0}
    return replace(factory.result(count=1), summary=summary, verdict=verdict)


class Probe:
    """A server that meets the goal up to a rate; it remembers what it was asked."""

    def __init__(self, limit: float, verdicts: list[Verdict] | None = None) -> None:
        self.rates: list[float] = []
        self._limit = limit
        self._verdicts = verdicts or []

    def __call__(self, rate: float) -> Result:
        self.rates.append(rate)
        verdict = self._verdicts.pop(0) if self._verdicts else VALID
        return measured(0.96 if rate <= self._limit else 0.5, verdict)


@pytest.mark.parametrize("limit", [1.0, 1.04, 7.3, 8.0, 63.9, 99.9])
def test_the_bracket_holds_the_limit_and_is_narrow(limit: float) -> None:
    probe = Probe(limit)
    bracket = search.search(Goal(low=1, high=100, tolerance=0.05), probe).bracket
    assert bracket.met is not None
    assert bracket.missed is not None
    assert bracket.met <= limit < bracket.missed <= 1.05 * bracket.met
    assert len(probe.rates) <= 14


def test_the_rate_is_doubled_and_then_the_bracket_halved() -> None:
    probe = Probe(9.0)
    search.search(Goal(low=2, high=100, tolerance=0.5), probe)
    assert probe.rates == pytest.approx([2, 4, 8, 16, 128**0.5])


def test_the_share_decides() -> None:
    assert search.search(Goal(share=0.96, high=1), Probe(5)).bracket == Bracket(met=1)
    assert search.search(Goal(share=0.97, high=1), Probe(5)).bracket == Bracket(missed=1)


@pytest.mark.parametrize(
    ("limit", "rates", "bracket", "text"),
    [
        (0.5, [1], Bracket(missed=1), "below 1 requests/s"),
        (500, [1, 2, 4, 5], Bracket(met=5), "at least 5 requests/s"),
    ],
)
def test_a_limit_beyond_the_range(
    limit: float, rates: list[float], bracket: Bracket, text: str
) -> None:
    probe = Probe(limit)
    assert search.search(Goal(low=1, high=5), probe) == Answer(bracket)
    assert probe.rates == rates
    assert str(bracket) == text


def test_a_doubtful_probe_is_repeated_once() -> None:
    probe = Probe(5, [VALID, DOUBTFUL])
    answer = search.search(Goal(low=2, high=4), probe)
    assert probe.rates == [2, 4, 4]
    assert answer == Answer(Bracket(met=4))


def test_a_probe_that_stays_doubtful_ends_the_search() -> None:
    probe = Probe(5, [VALID, DOUBTFUL, DOUBTFUL])
    answer = search.search(Goal(low=2, high=8), probe)
    assert probe.rates == [2, 4, 4]
    assert answer == Answer(Bracket(met=2), "at 4 requests/s, degraded: sent late")


def test_the_harnesss_own_ceiling_is_where_its_runs_are_no_longer_valid() -> None:
    rates: list[float] = []

    def probe(rate: float) -> Result:
        rates.append(rate)
        return measured(0.0, VALID if rate <= 100 else DOUBTFUL)

    answer = search.search(Goal(share=None, low=50, high=1000, tolerance=0.2), probe)
    assert answer.stopped == ""
    assert answer.bracket.met is not None
    assert answer.bracket.missed is not None
    assert answer.bracket.met <= 100 < answer.bracket.missed <= 1.2 * answer.bracket.met
    assert rates[:4] == [50, 100, 200, 200]


# -- probes


def test_each_probe_has_its_rate_and_a_plan_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Run] = []

    def execute(run: Run, directory: Path) -> tuple[Result, Path]:
        runs.append(run)
        return measured(0.5, DOUBTFUL), directory / "file.json"

    prober = search.Prober(RUN, tmp_path, execute, pause_s=0)
    for rate in (3.0, 3.0, 6.0):
        prober(rate)
    assert [(run.spec.load.rate, run.spec.seed) for run in runs] == [(3, 40), (3, 41), (6, 42)]
    assert {run.name for run in runs} == {"n-search"}
    assert {replace(run.spec.load, rate=1.0) for run in runs} == {RUN.spec.load}
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for part in ("3 requests/s", "50.00% meet", "degraded; sent late", "file.json"):
        assert part in lines[0]


# -- the command


def main(*words: str) -> int:
    parser = options.Parser("search", "")
    search.add_arguments(parser)
    return search.main(parser.parse_args(words))


def served(
    monkeypatch: pytest.MonkeyPatch, limit: float, harness: Callable[[Run], Harness] | None = None
) -> list[Run]:
    """Instead of `execute`; the runs that were asked for."""
    runs: list[Run] = []

    def execute(run: Run, directory: Path) -> tuple[Result, Path]:
        runs.append(run)
        found = measured(1.0 if run.spec.load.rate <= limit else 0.1)
        return replace(found, harness=harness(run) if harness else Harness()), directory / "f"

    monkeypatch.setattr(search, "execute", execute)
    monkeypatch.setattr(search, "PAUSE_S", 0.0)
    return runs


def test_the_answer_is_told_with_its_bracket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = served(monkeypatch, limit=12)
    assert main("--slo", "ttft=1", "--share=0.9", "--low=5", "--tolerance=0.5", "--rate=7") == 0
    assert [run.spec.load.rate for run in runs] == pytest.approx([5, 10, 20, 200**0.5])
    told = "90% meet the SLOs: 10 requests/s (met at 10, missed at 14.14)"
    assert told in capsys.readouterr().out


def test_no_rate_is_an_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, limit=1)
    assert main("--slo", "ttft=1", "--low=5") == 1


def test_an_interrupted_probe_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, 100, lambda run: Harness(interrupted=run.spec.load.rate > 1))
    with pytest.raises(KeyboardInterrupt):
        main("--slo", "ttft=1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "needs --slo"),
        ("--slo ttft=1 --load steps", "one rate"),
        ("--slo ttft=1 --concurrency 5", "one rate"),
        ("--slo ttft=1 --low 5 --high 4", "below --low"),
        ("--slo ttft=1 --share 1.5", "at most 1"),
        ("--slo ttft=1 --base-url http://a http://b", "one --base-url"),
    ],
)
def test_what_cannot_be_searched(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        main(*words.split())
