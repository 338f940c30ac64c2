"""One setting of everything that a planner may choose, and what it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loadtest.simulator.autoscaler import Autoscaler, Gauge, Metric
from loadtest.simulator.cluster import ClusterSettings, Story, simulate
from loadtest.simulator.hpa_behavior import Behavior, Bounds, Policy, Rules
from loadtest.simulator.outcome import Slo
from loadtest.simulator.scenario import Load, Replica

SERIES: Mapping[Gauge, str] = {
    "pending": "vllm_pending_requests",
    "running": "vllm_running_requests",
    "demand": "tidegate_demand_sequences",
}


@dataclass(frozen=True)
class Candidate:
    """What is chosen.

    Attributes:
        pending: target for a replica; None: there is only one target, for demand.
        running: target as a share of the slots, for demand too: while nothing waits or is refused
            that is what runs.
        up: pods that may come within the time of a start, or
        up_percent: so many per cent of those that are there, if that is more; 0: no such policy.
        down_window_s: for which the most that was asked for counts.
        down_every_s: one pod may go.

    """

    max_num_seqs: int
    max_num_batched_tokens: int
    least: int = 1
    pending: int | None = 4
    running: float = 0.75
    up: int = 2
    up_percent: int = 50
    down_window_s: float = 600.0
    down_every_s: float = 150.0

    @classmethod
    def shipped(cls, slots: int, tokens: int, *, slo: bool = False) -> "Candidate":
        """As `deploy/` has it: pending at an eighth of the slots.

        With `admission.ttft_slo_s` nothing waits for long, and demand is what it goes by.
        """
        return cls(slots, tokens, pending=None if slo else max(1, slots // 8))

    def autoscaler(self, most: int, start_s: float) -> Autoscaler:
        """Its manifest, as the simulator has it."""
        behavior = Behavior(
            Rules(0.0, self.up_policies(start_s)),
            Rules(self.down_window_s, (Policy("Pods", 1, self.down_every_s),)),
        )
        metrics = tuple(Metric(gauge, target) for gauge, target in self.targets.items())
        return Autoscaler(metrics, Bounds(self.least, max(most, self.least), behavior))

    def up_policies(self, start_s: float) -> tuple[Policy, ...]:
        """One or two."""
        period_s = period_of(start_s)
        pods = Policy("Pods", self.up, period_s)
        percent = Policy("Percent", self.up_percent, period_s)
        return (pods, percent) if self.up_percent else (pods,)

    @property
    def targets(self) -> dict[Gauge, int]:
        """For a replica, in sequences."""
        running = max(1, round(self.running * self.max_num_seqs))
        if self.pending is None:
            return {"demand": running}
        return {"pending": self.pending, "running": running}

    def __str__(self) -> str:
        targets = ", ".join(f"{gauge} {target}" for gauge, target in self.targets.items())
        return (
            f"{self.max_num_seqs} slots, {self.max_num_batched_tokens} tokens; at least "
            f"{self.least}, {targets}; up {self.up} or {self.up_percent} %, "
            f"down {self.down_window_s:g} s and 1 per {self.down_every_s:g} s"
        )


def period_of(start_s: float) -> float:
    """Of the policy for scaling up, within what the API allows."""
    return float(min(1800, max(15, round(start_s))))


@dataclass(frozen=True)
class Result:
    """What a candidate comes to."""

    candidate: Candidate
    good: float
    gpu_hours: float
    peak: int
    turns: int

    def rank(self, wanted: float) -> tuple[bool, float]:
        """Less is better: first those that are good enough, by their cost."""
        return (False, self.gpu_hours) if self.good >= wanted else (True, -self.good)


def play(candidate: Candidate, scaler: Autoscaler, load: Load, one: Replica) -> Story:
    """Simulate it with its autoscaler, or with another."""
    engine = one.engine(candidate.max_num_seqs, candidate.max_num_batched_tokens)
    given = ClusterSettings(engine, one.coefficients, one.door, candidate.least, scaler, one.start)
    return simulate(given, load.jobs(), load.end_s)


def result(candidate: Candidate, story: Story, limits: Slo) -> Result:
    """Of a story."""
    good = float(story.outcome.good(limits).mean())
    return Result(candidate, good, story.gpu_hours, story.peak, story.changes)


def manifest(candidate: Candidate, name: str, most: int, start_s: float) -> dict[str, Any]:
    """The autoscaler, as Kubernetes takes it."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": candidate.least,
            "maxReplicas": max(most, candidate.least),
            "metrics": [
                _pods_metric(SERIES[gauge], target) for gauge, target in candidate.targets.items()
            ],
            "behavior": {
                "scaleUp": _rules(0, candidate.up_policies(start_s)),
                "scaleDown": _rules(
                    candidate.down_window_s, (Policy("Pods", 1, candidate.down_every_s),)
                ),
            },
        },
    }


def _pods_metric(series: str, target: int) -> dict[str, Any]:
    value = {"type": "AverageValue", "averageValue": str(target)}
    return {"type": "Pods", "pods": {"metric": {"name": series}, "target": value}}


def _rules(window_s: float, policies: tuple[Policy, ...]) -> dict[str, Any]:
    found = [
        {"type": one.kind, "value": one.value, "periodSeconds": int(one.period_s)}
        for one in policies
    ]
    return {"stabilizationWindowSeconds": int(window_s), "policies": found}


def neighbours(
    one: Candidate, most: int, slots: tuple[int, ...], tokens: tuple[int, ...]
) -> list[Candidate]:
    """All that differ in one choice."""
    choices: dict[str, tuple[Any, ...]] = {
        "least": tuple(range(1, most + 1)),
        "pending": () if one.pending is None else (1, 2, 4, 8, 16, 32),
        "running": (0.25, 0.5, 0.75, 0.9),
        "up": (1, 2, 4, 8),
        "up_percent": (0, 50, 100),
        "down_window_s": (60.0, 120.0, 300.0, 600.0),
        "down_every_s": (15.0, 60.0, 150.0),
        "max_num_seqs": slots,
        "max_num_batched_tokens": tokens,
    }
    found = [replace(one, **{name: value}) for name, values in choices.items() for value in values]
    return [
        other
        for other in found
        if other != one and other.max_num_batched_tokens >= other.max_num_seqs
    ]
