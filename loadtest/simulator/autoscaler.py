"""An autoscaler on gauges that are scraped: what it reads, how old that is, what it makes of it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loadtest.simulator import hpa
from loadtest.simulator.hpa_behavior import Bounds, History, decide
from loadtest.simulator.replica import Gauges
from loadtest.simulator.ticks import Ticks, seconds, ticks

STALE_S = 300.0
"""A sample that is older than this is no longer found by a query."""

Gauge: TypeAlias = Literal["pending", "running", "demand", "kv"]


@dataclass(frozen=True)
class Metric:
    """One metric and its target for a replica on average.

    Attributes:
        gauge: the scraped series, of `Gauges`.
        target: AverageValue.
        source: `pods` through an adapter, or `total` through KEDA, which sums over all that is
            scraped, draining pods too.

    """

    gauge: Gauge
    target: float
    source: Literal["pods", "total"] = "pods"


@dataclass(frozen=True)
class Autoscaler:
    """What the manifest says, and the delays on the way.

    Attributes:
        scrape_s: between two scrapes of a pod.
        adapter_s: how old what a query finds is at least.
        window_s: of the query's average; 0: the last sample.

    """

    metrics: tuple[Metric, ...]
    bounds: Bounds
    scrape_s: float = 15.0
    adapter_s: float = 0.0
    window_s: float = 0.0
    sync_s: float = hpa.SYNC_S
    tolerance: float = hpa.TOLERANCE

    @property
    def keep_s(self) -> float:
        """How old a sample may be that a query finds."""
        return (self.window_s or STALE_S) + self.adapter_s


class Samples:
    """What was scraped of one pod."""

    def __init__(self, keep_s: float) -> None:
        self._keep = ticks(keep_s)
        self._samples: deque[tuple[Ticks, Gauges]] = deque()

    def add(self, at: Ticks, gauges: Gauges) -> None:
        """Take a scrape."""
        self._samples.append((at, gauges))
        while self._samples[0][0] < at - self._keep:
            self._samples.popleft()

    def read(self, gauge: Gauge, at: Ticks, window: Ticks) -> float | None:
        """The mean of a window's samples, or the last one without a window; None: none."""
        since = at - (window or ticks(STALE_S))
        found = [
            float(getattr(gauges, gauge)) for time, gauges in self._samples if since < time <= at
        ]
        if not found:
            return None
        return sum(found) / len(found) if window else found[-1]


@dataclass(frozen=True)
class Seen:
    """A pod at a sync: as the controller has it, and its samples."""

    pod: hpa.Pod
    samples: Samples


class Controller:
    """Syncs."""

    def __init__(self, given: Autoscaler) -> None:
        self.given = given
        self.history = History()

    def sync(self, now: Ticks, replicas: int, pods: Sequence[Seen]) -> int:
        """The replicas from now on."""
        asked = hpa.desired(
            replicas, [self._asked(metric, now, replicas, pods) for metric in self.given.metrics]
        )
        found, self.history = decide(self.given.bounds, self.history, seconds(now), replicas, asked)
        return found

    def _asked(self, metric: Metric, now: Ticks, replicas: int, pods: Sequence[Seen]) -> int | None:
        at, window = now - ticks(self.given.adapter_s), ticks(self.given.window_s)
        found = {seen.pod.name: seen.samples.read(metric.gauge, at, window) for seen in pods}
        values = {name: value for name, value in found.items() if value is not None}
        target = hpa.milli(metric.target)
        if metric.source == "total":
            # No series is not no load: `ignoreNullValues` is "false" in the shipped ScaledObject.
            total = hpa.milli(sum(values.values())) if values else None
            return hpa.total_metric(target, replicas, total, self.given.tolerance)
        in_milli = {name: hpa.milli(value) for name, value in values.items()}
        groups = hpa.group([seen.pod for seen in pods], in_milli)
        return hpa.pods_metric(target, replicas, groups, self.given.tolerance)
