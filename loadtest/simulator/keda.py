"""Where KEDA differs from an autoscaler on metrics of pods.

KEDA makes an HPA with `External` metrics (`hpa.total_metric`), and by itself only moves between 0
and 1 replica and hands out the metrics, with a fallback where a source fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtest.simulator.hpa import Milli


@dataclass(frozen=True)
class Fallback:
    """What is answered for a trigger that has failed too often.

    Attributes:
        failures: `failureThreshold`; one more is too often (`fallback.go` compares with >).

    """

    failures: int
    replicas: int
    behavior: Literal[
        "static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"
    ] = "static"

    def total(self, target: Milli, current: int, failures: int) -> Milli | None:
        """As a metric: target × replicas; None while the failures are not enough."""
        if failures <= self.failures:
            return None
        return target * self._replicas(current)

    def _replicas(self, current: int) -> int:
        if self.behavior == "currentReplicas":
            return current
        if self.behavior == "currentReplicasIfHigher":
            return max(current, self.replicas)
        if self.behavior == "currentReplicasIfLower":
            return min(current, self.replicas)
        return self.replicas


def read(series: Sequence[float] | None, *, ignore_null: bool = True) -> float | None:
    """The value of a query; None is an error.

    Args:
        series: elements of the answer; None: no answer.
        ignore_null: an empty answer is 0, which is KEDA's default and scales down.

    """
    if series is None or len(series) > 1:
        return None
    if not series:
        return 0.0 if ignore_null else None
    return series[0]


@dataclass(frozen=True)
class Activation:
    """Between 0 and 1 replica; the HPA sees nothing of it.

    Attributes:
        thresholds: of each trigger; a value above one activates.
        cooldown_s: without activity before the last replica goes.

    """

    thresholds: Sequence[float]
    cooldown_s: float = 300.0

    def active(self, values: Sequence[float | None]) -> bool:
        pairs = zip(values, self.thresholds, strict=True)
        return any(value is not None and value > threshold for value, threshold in pairs)

    def replicas(self, current: int, least: int, *, active: bool, idle_s: float) -> int:
        """At a poll.

        Args:
            current: replicas.
            least: `minReplicaCount`.
            active: now.
            idle_s: since it was last active.

        """
        if current == 0:
            return max(1, least) if active else least
        if least == 0 and not active and idle_s >= self.cooldown_s:
            return 0
        return current
