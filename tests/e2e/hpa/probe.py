"""What a kubelet decides: whether a probe holds, and how much of the grace period is left."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MINIMUM_GRACE_S = 2.0
"""What a container gets after SIGTERM when its preStop hook has used up the grace period."""


@dataclass(frozen=True)
class Probe:
    """One HTTP probe of a container; seconds and counts as in its manifest."""

    path: str
    port: int
    period_s: float
    timeout_s: float
    failures: int
    successes: int

    @classmethod
    def parse(cls, probe: Mapping[str, Any], ports: Mapping[str, int]) -> "Probe":
        """From a manifest; `ports` has the container's by their names."""
        http = probe["httpGet"]
        return cls(
            path=http["path"],
            port=ports[http["port"]],
            period_s=probe.get("periodSeconds", 10),
            timeout_s=probe.get("timeoutSeconds", 1),
            failures=probe.get("failureThreshold", 3),
            successes=probe.get("successThreshold", 1),
        )


@dataclass
class Verdict:
    """What a series of answers to one probe means; a change takes as many as the probe says."""

    probe: Probe
    holds: bool = False
    row: int = 0

    def observe(self, good: bool) -> bool:
        """Count one answer; whether the verdict is another now."""
        if good == self.holds:
            self.row = 0
            return False
        self.row += 1
        if self.row < (self.probe.successes if good else self.probe.failures):
            return False
        self.holds, self.row = good, 0
        return True


def failed(verdict: Verdict, good: bool) -> bool:
    """Count one answer of a probe whose failure ends the container: start-up or liveness."""
    if good:
        verdict.row = 0
        return False
    verdict.row += 1
    return verdict.row >= verdict.probe.failures


def hook_limit(grace_s: float, wanted_s: float) -> float:
    """How long a preStop hook may take: the grace period has begun before it."""
    return min(grace_s, wanted_s)


def left_for_term(grace_s: float, used_s: float) -> float:
    """Seconds from SIGTERM to SIGKILL."""
    return max(MINIMUM_GRACE_S, grace_s - used_s)
