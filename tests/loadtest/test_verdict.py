"""Verdicts: a table of what makes a run doubtful or worthless."""

from collections.abc import Callable

import pytest

from loadtest.record import Outcome, Record
from loadtest.verdict import Grade, Harness, judge, rate_error


def run(count: int = 400, lag: float = 0.0, stretch: float = 1.0) -> list[Record]:
    return [
        Record(
            index=i, tenant="t", intended=i * 0.1, sent=i * 0.1 * stretch + lag, first=1, last=2,
            prompt_tokens_asked=1, output_tokens_asked=2, output_tokens=2, chunk_tokens=2,
            outcome=Outcome.OK, status=200,
        )
        for i in range(count)
    ]  # fmt: skip


def spoiled(records: list[Record], every: int, spoil: Callable[[Record], object]) -> list[Record]:
    for r in records[::every]:
        spoil(r)
    return records


def failed(outcome: Outcome) -> Callable[[Record], None]:
    def spoil(record: Record) -> None:
        record.outcome = outcome

    return spoil


def miscounted(record: Record) -> None:
    record.chunk_tokens = 1


@pytest.mark.parametrize(
    ("records", "harness", "grade", "reason"),
    [
        (run(), Harness(), Grade.VALID, None),
        (run(lag=0.049), Harness(), Grade.VALID, None),
        (run(lag=0.051), Harness(), Grade.DEGRADED, "sent late"),
        (run(stretch=1.1), Harness(open_loop=False), Grade.VALID, None),
        (run(stretch=1.1), Harness(), Grade.DEGRADED, "achieved rate"),
        (run(), Harness(cpu_share=0.81), Grade.DEGRADED, "of a core"),
        (run(), Harness(loop_lag_p99_s=0.06), Grade.DEGRADED, "event loop"),
        (spoiled(run(), 10, miscounted), Harness(), Grade.DEGRADED, "disagree"),
        (run(count=29), Harness(), Grade.DEGRADED, "only 29"),
        (run(), Harness(server_restarted=True), Grade.INVALID, "restarted"),
        (run(), Harness(interrupted=True), Grade.INVALID, "interrupted"),
        (spoiled(run(), 1, failed(Outcome.CUT)), Harness(), Grade.INVALID, "no request"),
        (spoiled(run(), 10, failed(Outcome.CONNECTION)), Harness(), Grade.INVALID, "connection"),
        # A server that refuses is not a fault of the measurement.
        (spoiled(run(), 2, failed(Outcome.REJECTED)), Harness(), Grade.VALID, None),
    ],
)
def test_verdict(records: list[Record], harness: Harness, grade: Grade, reason: str | None) -> None:
    verdict = judge(records, harness)
    assert verdict.grade is grade
    assert any(reason in text for text in verdict.reasons) if reason else not verdict.reasons


def test_the_worst_grade_wins_and_every_reason_is_told() -> None:
    verdict = judge(run(lag=1.0), Harness(cpu_share=0.9, server_restarted=True))
    assert verdict.grade is Grade.INVALID
    assert len(verdict.reasons) == 3


def test_the_rate_is_compared_by_its_sends() -> None:
    assert rate_error(run()) == pytest.approx(0.0)
    assert rate_error(run(stretch=2.0)) == pytest.approx(-0.5)
    assert rate_error(run(count=1)) == 0.0
