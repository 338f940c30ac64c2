"""Whether a run can be believed: a pure function of what was measured, with its reasons.

Each bound comes from a public report of a measurement that was wrong without it.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.record import Outcome, Record

MAX_SEND_LAG_P99_S = 0.050
MAX_RATE_ERROR = 0.02
MAX_CLIENT_CPU = 0.80  # of one core, for each worker
MAX_TOKEN_DISAGREEMENT = 0.01  # share of the successes whose chunks and usage differ
MIN_SUCCESSES = 30


class Grade(enum.StrEnum):
    """`valid`: believe it. `degraded`: read the reasons first. `invalid`: measure again."""

    VALID = "valid"
    DEGRADED = "degraded"
    INVALID = "invalid"


@dataclass(frozen=True)
class Harness:
    """What the harness measured of itself and of the server's identity.

    Attributes:
        cpu_share: of one core, the busiest worker's.
        loop_lag_p99_s: how late the event loop ran a timer.
        server_restarted: its start time changed, or it went away.
        worker_lost: a process that sends ended before its part of the plan.
        open_loop: the arrivals had times of their own.

    """

    cpu_share: float = 0.0
    loop_lag_p99_s: float = 0.0
    server_restarted: bool = False
    worker_lost: bool = False
    open_loop: bool = True
    interrupted: bool = False


@dataclass(frozen=True)
class Verdict:
    """The worst grade that was found, and every reason for it."""

    grade: Grade
    reasons: tuple[str, ...]


def judge(
    records: Sequence[Record], harness: Harness, planned: Sequence[Record] | None = None
) -> Verdict:
    """Grade a run.

    Args:
        records: every request of the window.
        harness: what the harness measured of itself.
        planned: those of them that had a time of their own; None: all.

    """
    scheduled = records if planned is None else planned
    found = [*_fatal(records, harness), *_late(scheduled, harness), *_doubts(records, harness)]
    grades = [grade for grade, _ in found]
    worst = next((g for g in (Grade.INVALID, Grade.DEGRADED) if g in grades), Grade.VALID)
    return Verdict(worst, tuple(reason for _, reason in found))


def _fatal(records: Sequence[Record], harness: Harness) -> Iterable[tuple[Grade, str]]:
    if harness.server_restarted:
        yield Grade.INVALID, "the server restarted or went away during the run"
    if harness.worker_lost:
        yield Grade.INVALID, "a worker of the harness died: its records are missing"
    if harness.interrupted:
        yield Grade.INVALID, "the run was interrupted: what is here is a part of the plan"
    if not any(record.ok for record in records):
        yield Grade.INVALID, "no request succeeded"
    unreached = sum(record.outcome is Outcome.CONNECTION for record in records)
    if unreached > MAX_RATE_ERROR * len(records):
        yield Grade.INVALID, f"{unreached} of {len(records)} requests found no connection"


def _late(records: Sequence[Record], harness: Harness) -> Iterable[tuple[Grade, str]]:
    lag = send_lag_p99(records)
    if harness.open_loop and lag > MAX_SEND_LAG_P99_S:
        yield Grade.DEGRADED, f"requests were sent late: p99 {lag * 1000:.0f} ms"
    error = rate_error(records)
    if harness.open_loop and abs(error) > MAX_RATE_ERROR:
        yield Grade.DEGRADED, f"the achieved rate is off by {error:+.1%}"


def _doubts(records: Sequence[Record], harness: Harness) -> Iterable[tuple[Grade, str]]:
    if harness.cpu_share > MAX_CLIENT_CPU:
        yield Grade.DEGRADED, f"a worker used {harness.cpu_share:.0%} of a core"
    if harness.loop_lag_p99_s > MAX_SEND_LAG_P99_S:
        yield Grade.DEGRADED, f"the event loop was late: p99 {harness.loop_lag_p99_s * 1000:.0f} ms"
    disagreement = token_disagreement(records)
    if disagreement > MAX_TOKEN_DISAGREEMENT:
        yield Grade.DEGRADED, f"chunks and usage disagree in {disagreement:.1%} of the successes"
    successes = sum(record.ok for record in records)
    if 0 < successes < MIN_SUCCESSES:
        yield Grade.DEGRADED, f"only {successes} requests succeeded: too few for percentiles"


def send_lag_p99(records: Sequence[Record]) -> float:
    """Seconds between intended and real sends, of those that were sent."""
    lags = [lag for record in records if (lag := record.send_lag) is not None]
    return float(np.percentile(lags, 99)) if lags else 0.0


def rate_error(records: Sequence[Record]) -> float:
    """The achieved over the intended rate of sends, less 1; 0 for fewer than two."""
    sent = sorted(record.sent for record in records if record.sent is not None)
    intended = sorted(record.intended for record in records)
    if len(sent) < 2 or intended[-1] == intended[0]:
        return 0.0
    achieved = (len(sent) - 1) / (sent[-1] - sent[0]) if sent[-1] > sent[0] else float("inf")
    return achieved * (intended[-1] - intended[0]) / (len(intended) - 1) - 1


def token_disagreement(records: Sequence[Record]) -> float:
    """The share of successes whose tokens counted from chunks differ from `usage`."""
    counted = [r for r in records if r.ok and r.chunk_tokens is not None]
    if not counted:
        return 0.0
    return sum(r.chunk_tokens != r.output_tokens for r in counted) / len(counted)
