"""Latency, throughput and goodput of a set of records."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.record import Outcome, Record

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
MIN_FOR_P99 = 300  # below this a p99 is one or two requests
NAMES: dict[str, Callable[[Record], float | None]] = {
    "ttft": lambda r: r.ttft,
    "effective_ttft": lambda r: r.effective_ttft,
    "tpot": lambda r: r.tpot,
    "e2e": lambda r: r.e2e,
    "effective_e2e": lambda r: r.effective_e2e,
}
SLO_METRICS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Slo:
    """Bounds in seconds by metric; `ttft` and `e2e` are measured from the intended send."""

    bounds: dict[str, float]

    def met(self, record: Record) -> bool:
        """Whether a request counts as good: it succeeded, within every bound."""
        return record.ok and all(
            _within(_measured(record, name), bound) for name, bound in self.bounds.items()
        )


def _measured(record: Record, name: str) -> float | None:
    if name == "tpot":
        return record.tpot if (record.output_tokens or 0) >= 2 else 0.0
    return NAMES[f"effective_{name}"](record)


def _within(value: float | None, bound: float) -> bool:
    return value is not None and value <= bound


def distribution(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and linear percentiles; no p99 below 300 values."""
    if not values:
        return {"mean": None, **{f"p{p:g}": None for p in PERCENTILES}}
    data = np.asarray(values, dtype=float)
    found = dict(zip(PERCENTILES, np.percentile(data, PERCENTILES), strict=True))
    return {
        "mean": float(data.mean()),
        **{
            f"p{p:g}": None if p == 99 and len(values) < MIN_FOR_P99 else float(v)
            for p, v in found.items()
        },
    }


def over_all(values: Sequence[float], offered: int) -> dict[str, float | None]:
    """Percentiles over all offered requests, where each that failed took for ever.

    An infinite percentile is given as None: JSON has no infinity.
    """
    padded = np.concatenate(
        [np.sort(np.asarray(values, dtype=float)), np.full(offered - len(values), np.inf)]
    )
    result: dict[str, float | None] = {}
    for p in PERCENTILES:
        value = _linear(padded, p)
        result[f"p{p:g}"] = None if not np.isfinite(value) else value
    return result


def _linear(ordered: "np.ndarray[tuple[int], np.dtype[np.float64]]", percent: float) -> float:
    """The linear percentile of sorted values; infinite as soon as an infinite one takes part."""
    if len(ordered) == 0:
        return float("inf")
    position = (len(ordered) - 1) * percent / 100
    below, share = int(position), position % 1
    low = float(ordered[below])
    if share == 0:
        return low
    high = float(ordered[below + 1])
    return float("inf") if not np.isfinite(high) else low + share * (high - low)


def gaps(records: Iterable[Record]) -> list[float]:
    """Inter-token latencies, pooled: each gap shared by the tokens that came after it."""
    return [gap / max(1, n) for r in records if r.ok for gap, n in r.gaps for _ in range(max(1, n))]


def tokens_within(record: Record, window: tuple[float, float]) -> int:
    """How many of a success's tokens arrived in the window; all at its end when not streamed.

    The tokens of its first chunk are those that no later chunk brought.
    """
    if record.first is None or not record.gaps:
        moment = record.ended if record.ended is not None else float("nan")
        return (record.output_tokens or 0) if window[0] <= moment <= window[1] else 0
    later = np.array([tokens for _, tokens in record.gaps])
    times = record.first + np.cumsum([0.0, *(gap for gap, _ in record.gaps)])
    tokens = np.array([(record.output_tokens or 0) - later.sum(), *later])
    return int(tokens[(times >= window[0]) & (times <= window[1])].sum())


def summary(
    records: Sequence[Record], window: tuple[float, float], slo: Slo | None
) -> dict[str, Any]:
    """Everything that is reported of a window (start, end) in seconds.

    Latencies, outcomes and goodput are of the requests that were to be sent in the window,
    whenever they ended; throughput is what ended or arrived in it, whenever it was sent.
    """
    start, end = window
    span = end - start
    offered = [r for r in records if start <= r.intended <= end]
    good = [r for r in offered if r.ok]
    ended = sum(r.ok and r.ended is not None and start <= r.ended <= end for r in records)
    tokens = sum(tokens_within(r, window) for r in records if r.ok)
    outcome = Counter(r.outcome.value for r in offered)
    latencies = {
        name: distribution([v for r in good if (v := read(r)) is not None])
        for name, read in NAMES.items()
    }
    of_all = {
        name: over_all([v for r in good if (v := NAMES[name](r)) is not None], len(offered))
        for name in ("effective_ttft", "effective_e2e")
    }
    result: dict[str, Any] = {
        "offered": len(offered),
        "offered_per_s": _rate(len(offered), span),
        "outcomes": {o.value: outcome.get(o.value, 0) for o in Outcome},
        "window_s": span,
        "requests_per_s": _rate(ended, span),
        "output_tokens_per_s": _rate(tokens, span),
        "output_tokens": sum(r.output_tokens or 0 for r in good),
        "prompt_tokens": sum(r.prompt_tokens or 0 for r in good),
        "latency_s": {**latencies, "itl": distribution(gaps(offered))},
        "latency_of_all_offered_s": of_all,
        "rejection_s": distribution([v for r in offered if (v := _rejected_after(r)) is not None]),
    }
    if slo is not None:
        met = [r for r in offered if slo.met(r)]
        result["goodput"] = {
            "slo_s": dict(slo.bounds),
            "requests_per_s": _rate(len(met), span),
            "output_tokens_per_s": _rate(sum(r.output_tokens or 0 for r in met), span),
            "share_of_offered": _rate(len(met), len(offered)),
        }
    return result


def _rejected_after(record: Record) -> float | None:
    """Seconds from the send to the end of a refusal."""
    if record.outcome is not Outcome.REJECTED or record.ended is None or record.sent is None:
        return None
    return record.ended - record.sent


def _rate(count: float, over: float) -> float:
    return count / over if over > 0 else 0.0
