"""Results made up in code, as a run would leave them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from loadtest.metrics import Slo
from loadtest.plan import Load, Spec, Tenant
from loadtest.record import Outcome, Record
from loadtest.result import Gauges, Result, conclude
from loadtest.settings import Run, Target
from loadtest.verdict import Harness

TOKENS = 16
SLO = Slo({"ttft": 0.5, "tpot": 0.05})


def records(
    count: int,
    *,
    rate: float = 10.0,
    scale: float = 1.0,
    fail_every: int | None = None,
    outcome: Outcome = Outcome.REJECTED,
    tenants: Sequence[str] = ("default",),
    seed: int = 0,
) -> list[Record]:
    """`count` requests at `rate` a second: TTFT about 0.1 s × scale, TPOT about 10 ms × scale."""
    dice = np.random.default_rng(seed)
    at = (np.arange(count) + 0.5) / rate
    ttft = 0.1 * scale * dice.lognormal(0, 0.5, count)
    tpot = 0.01 * scale * dice.lognormal(0, 0.1, count)
    failed = [fail_every is not None and i % fail_every == 0 for i in range(count)]
    return [
        _failure(i, float(at[i]), tenants[i % len(tenants)], outcome)
        if failed[i]
        else _success(i, float(at[i]), tenants[i % len(tenants)], float(ttft[i]), float(tpot[i]))
        for i in range(count)
    ]


def _success(index: int, at: float, tenant: str, ttft: float, tpot: float) -> Record:
    sent = at + 0.001
    last = sent + ttft + tpot * (TOKENS - 1)
    return Record(
        index, tenant, at, 128, TOKENS, sent=sent, first=sent + ttft, last=last, ended=last + 0.001,
        gaps=[(tpot, 1)] * (TOKENS - 1), status=200, outcome=Outcome.OK,
        prompt_tokens=128, output_tokens=TOKENS, chunk_tokens=TOKENS,
    )  # fmt: skip


def _failure(index: int, at: float, tenant: str, outcome: Outcome) -> Record:
    return Record(
        index, tenant, at, 128, TOKENS, sent=at + 0.001, ended=at + 0.005, status=429,
        outcome=outcome,
    )  # fmt: skip


def result(
    name: str = "run",
    count: int = 400,
    *,
    rate: float = 10.0,
    warmup_s: float = 5.0,
    slo: Slo | None = SLO,
    tenants: Sequence[str] = ("default",),
    harness: Harness | None = None,
    gauges: Gauges | None = None,
    target: Target | None = None,
    notes: Sequence[str] = (),
    environment: Mapping[str, Any] | None = None,
    **of_records: Any,
) -> Result:
    """A concluded result; `of_records` are those of `records`."""
    made = records(count, rate=rate, tenants=tenants, **of_records)
    run = Run(
        name=name,
        target=target or Target(model="tiny"),
        spec=Spec(
            load=Load(kind="constant", rate=rate, duration_s=count / rate),
            tenants=tuple(Tenant(tenant) for tenant in tenants),
        ),
        slo=slo,
        warmup_s=warmup_s,
    )
    return conclude(
        Result(
            run=run,
            started_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            environment={"python": "3.11"} if environment is None else environment,
            window=(min(warmup_s, count / rate), count / rate),
            records=made,
            harness=harness or Harness(cpu_share=0.25, loop_lag_p99_s=0.002),
            gauges=gauges or _gauges(count / rate),
            prefix_cache_hit_rate=0.125,
            notes=notes,
        )
    )


def _gauges(duration_s: float) -> Gauges:
    at = [float(second) for second in range(int(duration_s) + 1)]
    return Gauges(
        at=at,
        series={
            "requests_running": [float(i % 7) for i in range(len(at))],
            "requests_waiting": [float(40 * i) for i in range(len(at))],
            "kv_cache_usage": [None if i == 3 else 0.01 * (i % 30) for i in range(len(at))],
        },
    )
