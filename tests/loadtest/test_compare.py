"""Comparisons: what is sent to whom and in which order, and what the ratios say."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import compare, options
from loadtest.compare import Round
from loadtest.errors import UsageError
from loadtest.plan import Spec
from loadtest.result import Result
from loadtest.servers import Server
from loadtest.settings import Run
from loadtest.verdict import Grade, Harness, Verdict
from tests.loadtest import factory

A, B, C = (Server(name, f"http://{name}") for name in ("first", "second", "third"))
RUN = Run(name="n", spec=Spec(seed=40))
VALID = Verdict(Grade.VALID, ())
DOUBTFUL = Verdict(Grade.DEGRADED, ("sent late",))


def measured(run: Run, rate: float, verdict: Verdict = VALID, **summary: Any) -> Result:
    numbers = {
        "requests_per_s": rate,
        "output_tokens_per_s": factory.TOKENS * rate,
        "latency_s": {"ttft": {"p50": 1 / rate if rate else None, "p99": None}},
        **summary,
    }
    return replace(factory.result(count=1), run=run, summary=numbers, verdict=verdict)


class Fake:
    """Instead of `execute`: rates by server and seed, and what was asked for."""

    def __init__(self, answer: Callable[[Run], Result]) -> None:
        self.runs: list[Run] = []
        self._answer = answer

    def __call__(self, run: Run, directory: Path) -> tuple[Result, Path]:
        self.runs.append(run)
        return self._answer(run), directory / f"{run.name}-{len(self.runs)}.json"


def rounds(*rates: tuple[float, float], verdicts: tuple[Verdict, Verdict] = (VALID, VALID)) -> Any:
    return [
        [
            (measured(RUN, rate, verdict), Path(f"{rate}.json"))
            for rate, verdict in zip(pair, verdicts, strict=True)
        ]
        for pair in rates
    ]


def ratio(measured: list[Round], metric: str) -> compare.Ratio:
    (found,) = (each for each in compare.ratios(measured, 1) if each.metric == metric)
    return found


# -- what is sent


def test_each_round_has_one_plan_and_the_opposite_order(tmp_path: Path) -> None:
    fake = Fake(lambda run: measured(run, 1.0))
    found = compare.measure(RUN, [A, B, C], 3, tmp_path, fake)
    assert [(run.name, run.spec.seed) for run in fake.runs] == [
        *(("n-A", 40), ("n-B", 40), ("n-C", 40)),
        *(("n-C", 41), ("n-B", 41), ("n-A", 41)),
        *(("n-A", 42), ("n-B", 42), ("n-C", 42)),
    ]
    assert {run.name: run.target.base_url for run in fake.runs} == {
        "n-A": A.base_url,
        "n-B": B.base_url,
        "n-C": C.base_url,
    }
    for run in fake.runs:
        spec = replace(run.spec, seed=RUN.spec.seed)
        assert replace(run, name=RUN.name, target=RUN.target, spec=spec) == RUN
    # Whatever the order, a round's results are in the order of the servers.
    assert [[r.run.name for r, _ in each] for each in found] == [["n-A", "n-B", "n-C"]] * 3


def test_an_interrupted_round_does_not_count(tmp_path: Path) -> None:
    def answer(run: Run) -> Result:
        stopped = (run.name, run.spec.seed) == ("n-B", 41)
        return replace(measured(run, 1.0), harness=Harness(interrupted=stopped))

    fake = Fake(answer)
    assert len(compare.measure(RUN, [A, B], 3, tmp_path, fake)) == 1
    assert len(fake.runs) == 3  # the second round began with B


# -- ratios


def test_ratios_are_of_pairs() -> None:
    found = ratio(rounds((10, 20), (100, 300), (1, 5)), "requests/s")
    assert found.server == "B"
    assert found.ratios == (2, 3, 5)
    assert found.median == 3
    assert found.interval is not None
    low, high = found.interval
    assert 2 <= low <= 3 <= high <= 5
    assert low < high


def test_equal_servers_have_a_ratio_of_one() -> None:
    found = compare.ratios(rounds(*[(10.0, 10.0)] * 6), 1)
    assert {each.metric for each in found} == {"requests/s", "output tokens/s", "TTFT p50"}
    assert {(each.median, each.interval) for each in found} == {(1.0, (1.0, 1.0))}


def test_a_pair_without_both_numbers_has_no_ratio() -> None:
    some = rounds((10, 20), (0, 30), (10, 0))
    assert ratio(some, "requests/s").ratios == (2, 0)
    assert ratio(some, "TTFT p50").ratios == (0.5,)
    none = ratio(rounds((0, 30)), "requests/s")
    assert (none.ratios, none.median, none.interval) == ((), None, None)


@pytest.mark.parametrize(
    ("verdicts", "trusted"),
    [((VALID, VALID), True), ((DOUBTFUL, VALID), False), ((VALID, DOUBTFUL), False)],
)
def test_a_ratio_of_doubtful_runs_is_marked(
    verdicts: tuple[Verdict, Verdict], trusted: bool
) -> None:
    some = rounds((10, 20), (10, 20), verdicts=verdicts)
    found = compare.ratios(some, 1)
    assert {each.trusted for each in found} == {trusted}
    text = compare.render([A, B], some, found)
    assert ("requests/s *" in text) is not trusted
    assert ("not all of the runs behind it are valid" in text) is not trusted
    assert ("degraded (sent late)" in text) is not trusted


def test_few_rounds_are_told() -> None:
    few, enough = rounds(*[(1, 2)] * 5), rounds(*[(1, 2)] * 6)
    warning = "fewer than 6 rounds"
    assert warning in compare.render([A, B], few, compare.ratios(few, 1))
    assert warning not in compare.render([A, B], enough, compare.ratios(enough, 1))


# -- the command


def main(tmp_path: Path, *words: str) -> int:
    parser = options.Parser("compare", "")
    compare.add_arguments(parser)
    return compare.main(parser.parse_args([*words, "--out", str(tmp_path)]))


PAIR = ("--base-url", A.base_url, B.base_url, "--name=n")


def test_a_comparison_leaves_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake(lambda run: measured(run, 10.0 if run.name == "n-A" else 20.0))
    monkeypatch.setattr(compare, "execute", fake)
    assert main(tmp_path, *PAIR, "--rounds=2") == 0
    assert main(tmp_path, *PAIR, "--rounds=2") == 0
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    text = capsys.readouterr().out
    assert str(files[0]) in text
    assert "B / A  requests/s              2.000  2.000 to 2.000    2" in text
    found = json.loads(files[0].read_text())
    assert (found["schema"], found["kind"]) == (1, "compare")
    assert [server["base_url"] for server in found["servers"]] == [A.base_url, B.base_url]
    assert [[run["result"] for run in each] for each in found["rounds"]] == [
        ["n-A-1.json", "n-B-2.json"],
        ["n-A-4.json", "n-B-3.json"],
    ]
    assert found["ratios"][0] == {
        "server": "B",
        "metric": "requests/s",
        "ratios": [2.0, 2.0],
        "median": 2.0,
        "interval_95": [2.0, 2.0],
        "trusted": True,
    }


def test_an_invalid_run_is_an_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = Verdict(Grade.INVALID, ("it died",))
    monkeypatch.setattr(compare, "execute", Fake(lambda run: measured(run, 1.0, invalid)))
    assert main(tmp_path, *PAIR, "--rounds=1") == 1


def test_an_interrupted_comparison_reports_its_whole_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(run: Run) -> Result:
        return replace(measured(run, 1.0), harness=Harness(interrupted=run.spec.seed == 1))

    monkeypatch.setattr(compare, "execute", Fake(answer))
    assert main(tmp_path, *PAIR, "--rounds=3") == 130
    (file,) = tmp_path.iterdir()
    assert len(json.loads(file.read_text())["rounds"]) == 1


def test_nothing_is_reported_of_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(run: Run) -> Result:
        return replace(measured(run, 1.0), harness=Harness(interrupted=True))

    monkeypatch.setattr(compare, "execute", Fake(answer))
    assert main(tmp_path, *PAIR) == 130
    assert not list(tmp_path.iterdir())


def test_one_server_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two or more"):
        main(tmp_path, "--base-url", A.base_url)


def test_the_capacity_is_the_first_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(lambda run: measured(run, 8.0))
    monkeypatch.setattr(compare, "execute", fake)
    main(tmp_path, *PAIR, "--rounds=1", "--rate=2x")
    assert [run.target.base_url for run in fake.runs] == [A.base_url, A.base_url, B.base_url]
    assert [run.spec.load.kind for run in fake.runs] == ["closed", "poisson", "poisson"]
    assert [run.spec.load.rate for run in fake.runs[1:]] == [16.0, 16.0]
    assert {run.capacity for run in fake.runs[1:]} == {8.0}
