"""The definitions, on numbers that can be checked by hand."""

import json

import pytest

from loadtest.metrics import (
    MIN_FOR_P99,
    Slo,
    distribution,
    gaps,
    over_all,
    summary,
    tokens_within,
)
from loadtest.record import Outcome, Record


def record(**values: object) -> Record:
    base = {"index": 0, "tenant": "t", "intended": 10.0, "prompt_tokens_asked": 3,
            "output_tokens_asked": 5, "sent": 10.5, "first": 11.5, "last": 13.5, "ended": 13.6,
            "status": 200, "outcome": Outcome.OK, "output_tokens": 5}  # fmt: skip
    return Record(**{**base, **values})  # type: ignore[arg-type]


def test_latencies_of_one_request() -> None:
    r = record()
    assert (r.ttft, r.effective_ttft) == (1.0, 1.5)
    assert (r.e2e, r.effective_e2e) == (3.0, 3.5)
    assert (r.tpot, r.send_lag) == (0.5, 0.5)


def test_what_was_not_seen_is_not_made_up() -> None:
    r = record(sent=None, first=None, last=None, outcome=Outcome.CONNECTION)
    assert [r.ttft, r.effective_ttft, r.e2e, r.tpot, r.send_lag] == [None] * 5
    assert record(output_tokens=1).tpot is None


def test_a_bundle_shares_its_gap_among_its_tokens() -> None:
    assert gaps([record(gaps=[(0.1, 1), (0.3, 3)])]) == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert gaps([record(gaps=[(0.1, 1)], outcome=Outcome.CUT)]) == []


def test_percentiles_are_linear_and_p99_needs_enough() -> None:
    few = distribution([float(i) for i in range(1, 102)])
    assert (few["mean"], few["p50"], few["p90"], few["p99"]) == (51.0, 51.0, 91.0, None)
    many = distribution([float(i) for i in range(MIN_FOR_P99 + 1)])
    assert many["p99"] == pytest.approx(297.0)
    assert distribution([])["p50"] is None


def test_over_all_offered_a_failure_took_for_ever() -> None:
    assert over_all([1.0, 2.0, 3.0], offered=3)["p50"] == 2.0
    assert over_all([1.0, 2.0, 3.0], offered=5)["p50"] == 3.0
    assert over_all([1.0, 2.0], offered=5)["p50"] is None
    assert over_all([], offered=0)["p50"] is None


@pytest.mark.parametrize(
    ("bounds", "values", "good"),
    [
        ({"ttft": 1.5}, {}, True),
        ({"ttft": 1.4}, {}, False),  # from the intended send: a late harness is not forgiven
        ({"tpot": 0.5}, {}, True),
        ({"tpot": 0.49}, {}, False),
        ({"tpot": 0.1}, {"output_tokens": 1}, True),
        ({"e2e": 3.5, "ttft": 1.5, "tpot": 0.5}, {}, True),
        ({"e2e": 3.4, "ttft": 1.5, "tpot": 0.5}, {}, False),
        ({}, {"outcome": Outcome.REJECTED}, False),
        ({}, {"outcome": Outcome.CUT}, False),
        ({}, {"outcome": Outcome.WRONG_LENGTH}, False),
    ],
)
def test_goodput_counts_only_what_meets_every_bound(
    bounds: dict[str, float], values: dict[str, object], good: bool
) -> None:
    assert Slo(bounds).met(record(**values)) is good


@pytest.mark.parametrize(
    ("window", "tokens"),
    [
        ((0.0, 20.0), 5),
        ((0.0, 11.5), 1),  # its first chunk: what the later ones did not bring
        ((0.0, 11.4), 0),
        ((11.6, 12.0), 1),
        ((12.1, 20.0), 3),
        ((12.0, 13.5), 4),
        ((13.6, 20.0), 0),
    ],
)
def test_tokens_count_where_they_arrived(window: tuple[float, float], tokens: int) -> None:
    # One at 11.5, one at 12.0, three at 13.5 in one chunk.
    assert tokens_within(record(gaps=[(0.5, 1), (1.5, 3)]), window) == tokens


@pytest.mark.parametrize(("window", "tokens"), [((13.6, 14.0), 5), ((13.0, 13.5), 0)])
@pytest.mark.parametrize("values", [{"first": None, "last": None}, {"gaps": []}])
def test_tokens_whose_times_are_unknown_arrived_at_the_end(
    values: dict[str, object], window: tuple[float, float], tokens: int
) -> None:
    assert tokens_within(record(**values), window) == tokens
    assert tokens_within(record(**values, ended=None), window) == 0


def test_a_summary_of_good_and_bad() -> None:
    records = [
        record(),
        record(outcome=Outcome.REJECTED, status=429),
        record(first=19.0, last=20.0, ended=20.0),
    ]
    found = summary(records, window=(10.0, 20.0), slo=Slo({"ttft": 1.5}))
    assert (found["offered"], found["offered_per_s"], found["window_s"]) == (3, 0.3, 10.0)
    assert (found["outcomes"]["ok"], found["outcomes"]["rejected"]) == (2, 1)
    assert sum(found["outcomes"].values()) == 3
    assert found["requests_per_s"] == 0.2
    assert found["output_tokens_per_s"] == 1.0
    assert (found["output_tokens"], found["prompt_tokens"]) == (10, 0)
    assert found["latency_s"]["ttft"]["mean"] == pytest.approx((1.0 + 8.5) / 2)
    assert found["latency_of_all_offered_s"]["effective_ttft"]["p50"] == 9.0
    assert found["latency_of_all_offered_s"]["effective_ttft"]["p90"] is None
    assert found["goodput"] == {
        "slo_s": {"ttft": 1.5},
        "requests_per_s": 0.1,
        "output_tokens_per_s": 0.5,
        "share_of_offered": pytest.approx(1 / 3),
    }
    json.dumps(found, allow_nan=False)


def test_throughput_is_of_what_ended_in_the_window_latency_of_what_began_in_it() -> None:
    before = record(intended=1.0)  # sent before the window, ended in it
    after = record(ended=21.0, gaps=[(0.5, 2), (9.0, 2)])  # its last tokens come after it
    found = summary([before, after], window=(10.0, 20.0), slo=Slo({"ttft": 1.5}))
    assert found["offered"] == 1
    assert found["latency_s"]["effective_ttft"]["p50"] == 1.5
    assert found["requests_per_s"] == 0.1
    assert found["output_tokens_per_s"] == pytest.approx((5 + 1 + 2) / 10)
    assert found["goodput"]["requests_per_s"] == 0.1


def test_a_failure_has_no_throughput() -> None:
    cut = record(outcome=Outcome.CUT, gaps=[(0.5, 4)])
    found = summary([cut], window=(10.0, 20.0), slo=None)
    assert (found["requests_per_s"], found["output_tokens_per_s"]) == (0.0, 0.0)
    assert found["latency_s"]["ttft"]["mean"] is None
    assert "goodput" not in found


def test_a_window_of_nothing() -> None:
    found = summary([], window=(5.0, 5.0), slo=Slo({"e2e": 1.0}))
    assert (found["offered"], found["offered_per_s"], found["requests_per_s"]) == (0, 0.0, 0.0)
    assert found["goodput"]["share_of_offered"] == 0.0
