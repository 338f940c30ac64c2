"""What the terminal says: every number, and a verdict that cannot be overlooked."""

import dataclasses
import re
from typing import Any

import pytest

from loadtest import table
from loadtest.metrics import Slo
from loadtest.plan import Load
from loadtest.record import Outcome
from loadtest.result import Result, conclude
from loadtest.settings import Target
from loadtest.verdict import Harness
from tests.loadtest.factory import result


def row(text: str, name: str) -> list[str]:
    """The cells after `name`."""
    found = [line for line in text.splitlines() if line.startswith(f"  {name}  ")]
    assert len(found) == 1, f"{len(found)} rows {name!r} in\n{text}"
    return re.split(r"\s{2,}", found[0].strip())[1:]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "∞"),
        (0.0, "0"),
        (0.0012345, "0.001234"),
        (1.0, "1.000"),
        (99.996, "100.00"),
        (123.456, "123.5"),
        (123456.7, "123457"),
        (-12.3456, "-12.35"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert table.number(value) == text


def test_every_number_of_a_result_is_there() -> None:
    found = result(
        "night", fail_every=10, outcome=Outcome.CUT, target=Target("http://h:1/v1", "tiny"),
        notes=["a note of it"],
    )  # fmt: skip
    text = table.render(found)
    summary = found.summary
    for name, label in table.LATENCIES.items():
        ms = [summary["latency_s"][name][column] * 1000 for column in table.COLUMNS]
        assert [float(cell) for cell in row(text, label)] == pytest.approx(ms, rel=1e-3)
    assert row(text, "name") == ["night"]
    assert row(text, "server") == ["http://h:1/v1, completions"]
    assert row(text, "model") == ["tiny"]
    assert row(text, "load") == ["constant 10/s for 40 s"]
    assert row(text, "seed") == ["0"]
    assert row(text, "offered") == ["350"]
    assert row(text, "ok") == ["315", "90.00 %"]
    assert row(text, "cut") == ["35", "10.00 %"]
    assert "rejected" not in text
    assert row(text, "output tokens") == [str(315 * 16)]
    assert float(row(text, "served, requests/s")[0]) == pytest.approx(9.0, rel=0.01)
    assert float(row(text, "output tokens/s")[0]) == pytest.approx(9 * 16, rel=0.01)
    assert row(text, "goodput, of the offered") == [
        table.share(summary["goodput"]["share_of_offered"])
    ]
    assert "TTFT ≤ 0.5 s, TPOT ≤ 0.05 s" in text
    assert row(text, "busiest worker, of a core") == ["25.00 %"]
    assert row(text, "loop lag p99, ms") == ["2.000"]
    assert row(text, "send lag p99, ms") == ["1.000"]
    assert row(text, "server's prefix-cache hits") == ["12.50 %"]
    assert "note: a note of it" in text


def test_a_failure_takes_for_ever_and_a_p99_takes_300() -> None:
    text = table.render(result(count=200, fail_every=10))
    assert row(text, "TTFT")[-1] == "-"
    assert "no p99 below 300 successes" in " ".join(text.split())
    mean, p50, *_, p99 = row(text, "effective TTFT, all offered")
    assert (mean, p99) == ("-", "∞")
    assert float(p50) > 0
    assert "no p99" not in table.render(result())


def test_what_was_not_measured_is_not_infinite() -> None:
    whole = result()
    records = [dataclasses.replace(r, first=None, gaps=[]) for r in whole.records]
    text = table.render(conclude(dataclasses.replace(whole, records=records)))
    assert row(text, "effective TTFT, all offered") == ["-"] * 5
    assert "∞" not in text


DOUBTFUL = Harness(cpu_share=0.9)
WORTHLESS = Harness(cpu_share=0.9, server_restarted=True)


@pytest.mark.parametrize(("harness", "grade"), [(DOUBTFUL, "DEGRADED"), (WORTHLESS, "INVALID")])
def test_a_bad_verdict_is_the_first_and_the_last_that_is_read(harness: Harness, grade: str) -> None:
    found = result(harness=harness)
    lines = table.render(found).splitlines()
    for part in (lines[:5], lines[-5:]):
        assert any(f"verdict: {grade}: " in line for line in part)
        assert any(set(line) == {"!"} for line in part)
        for reason in found.verdict.reasons:
            assert any(reason in line for line in part)


def test_a_good_verdict_does_not_shout() -> None:
    text = table.render(result())
    assert "verdict: VALID" in text
    assert "!!" not in text


def test_tenants_have_rows_where_there_are_several() -> None:
    found = result(tenants=("gold", "silver"), fail_every=2)  # every second: gold's
    text = table.render(found)
    assert row(text, "gold")[:2] == ["175", "0"]
    assert row(text, "silver")[:2] == ["175", "175"]
    assert "Tenants" not in table.render(result())


LOADS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "poisson", "rate": 2.5}, "Poisson 2.5/s for 60 s"),
    ({"kind": "gamma", "rate": 2.0, "cv": 3.0}, "gamma 2/s with CV 3 for 60 s"),
    ({"kind": "bursts", "rate": 9.0}, "bursts of 9/s, 10 s on and 10 s off, for 60 s"),
    ({"kind": "steps", "rates": (1.0, 2.5)}, "steps of 1, 2.5/s, 30 s each"),
    ({"kind": "ramp", "rate": 1.0, "last_rate": 9.0}, "ramp from 1/s to 9/s in 60 s"),
    (
        {"kind": "trace", "trace": "a.csv", "time_scale": 2.0},
        "a.csv, time × 2, lengths × 1, up to 60 s",
    ),
    (
        {"kind": "closed", "concurrency": 4, "requests": 9},
        "closed loop of 4 for 60 s, 9 requests at most",
    ),
]


@pytest.mark.parametrize(("load", "text"), LOADS)
def test_loads_in_words(load: dict[str, Any], text: str) -> None:
    assert table.describe(Load(**load)) == text


def compared(a: Result, b: Result) -> str:
    return table.side_by_side([a, b])


def ratio(cells: list[str]) -> tuple[float, float, float]:
    """Ratio and bounds of the second result."""
    found = re.fullmatch(r"×(\S+) \[(\S+), (\S+)\]", cells[2])
    assert found, cells
    return float(found[1]), float(found[2]), float(found[3])


@pytest.mark.parametrize("name", ["TTFT p50, ms", "TTFT p99, ms", "TPOT p50, ms", "E2E p50, ms"])
def test_a_ratio_is_told_with_its_interval(name: str) -> None:
    text = compared(result("a"), result("b", scale=1.5, seed=1))
    value, low, high = ratio(row(text, name))
    assert low < value < high
    assert low < 1.5 < high
    assert low > 1.0


def test_rates_are_compared_too() -> None:
    slo = Slo({"ttft": 0.15})
    text = compared(result("a", slo=slo), result("b", fail_every=4, seed=1, scale=1.2, slo=slo))
    value, low, high = ratio(row(text, "served, requests/s"))
    assert low < 0.75 < high
    assert value == pytest.approx(0.75, abs=0.01)
    good, _, good_high = ratio(row(text, "goodput, requests/s"))
    assert good < value
    assert good_high < 0.75
    assert row(text, "succeeded, %") == ["100.0", "75.14", "×0.7514"]


def test_the_same_twice_differs_by_nothing() -> None:
    text = compared(result(), result())
    assert "run #1" in text
    assert "run #2" in text
    assert ratio(row(text, "TTFT p50, ms"))[0] == 1.0


def test_a_bad_verdict_stands_above_its_column() -> None:
    text = compared(result("a"), result("b", harness=WORTHLESS))
    assert "verdict: INVALID" in text
    assert text.count("b (INVALID)") == 2


def test_failures_have_no_ratio() -> None:
    text = compared(result("a", fail_every=1), result("b"))
    assert row(text, "goodput, requests/s") == ["0", "10.00"]
    assert row(text, "effective TTFT p50, all offered, ms")[0] == "∞"
    assert len(row(text, "effective TTFT p50, all offered, ms")) == 2


def test_few_requests_have_no_p99_to_compare() -> None:
    text = compared(result("a", 100), result("b", 100))
    assert "TTFT p50, ms" in text
    assert "TTFT p99, ms" not in text


def test_records_may_lie_in_the_order_of_their_ends() -> None:
    slow_start = result("b", scale=1.5, seed=1)
    for record in slow_start.records[:200]:
        record.first = (record.first or 0) + 1.0
        record.last = (record.last or 0) + 1.0
    shuffled = dataclasses.replace(
        slow_start, records=sorted(slow_start.records, key=lambda r: r.index * 7 % 11)
    )
    assert compared(result("a"), shuffled) == compared(result("a"), slow_start)
