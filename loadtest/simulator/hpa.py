"""What a horizontal pod autoscaler's metrics ask for: the arithmetic of the controller.

Values and targets are whole milli-units, as the controller's are. The functions follow
`replica_calculator.go` and `computeReplicasForMetrics` of kube-controller-manager.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

SYNC_S = 15.0
TOLERANCE = 0.1

Milli: TypeAlias = int
Phase: TypeAlias = Literal["Pending", "Running", "Failed"]


def milli(value: float) -> Milli:
    """As the adapters turn a sample into a quantity: what is below a thousandth is cut off."""
    return int(value * 1000)


@dataclass(frozen=True)
class Pod:
    """As the controller sees it; whether it is ready does not matter for a metric of pods."""

    name: str
    phase: Phase = "Running"
    deleted: bool = False


@dataclass(frozen=True)
class Groups:
    """The pods by what is known of them.

    Attributes:
        values: of those that are counted.
        unready: how many are still pending.
        missing: how many run and have no sample.

    """

    values: Sequence[Milli]
    unready: int
    missing: int


def group(pods: Sequence[Pod], values: Mapping[str, Milli]) -> Groups:
    """Sort the pods; what is deleted or has failed is in no group."""
    alive = [pod for pod in pods if not pod.deleted and pod.phase != "Failed"]
    begun = [pod for pod in alive if pod.phase != "Pending"]
    found = [values[pod.name] for pod in begun if pod.name in values]
    return Groups(found, len(alive) - len(begun), len(begun) - len(found))


def ratio_of(values: Sequence[Milli], target: Milli) -> float:
    """The mean, cut to whole milli-units, over the target."""
    return (sum(values) // len(values)) / target


def within(ratio: float, tolerance: float = TOLERANCE) -> bool:
    """Whether a ratio is so near to 1 that nothing is done."""
    return 1.0 - tolerance <= ratio <= 1.0 + tolerance


def pods_metric(
    target: Milli,
    spec_replicas: int,
    groups: Groups,
    tolerance: float = TOLERANCE,
) -> int | None:
    """A `Pods` metric with an AverageValue; None when it says nothing."""
    if not groups.values:
        return None
    ratio = ratio_of(groups.values, target)
    rebalance = groups.unready > 0 and ratio > 1.0
    if not rebalance and not groups.missing:
        if within(ratio, tolerance):
            return spec_replicas
        return math.ceil(ratio * len(groups.values))
    filled = _filled(groups, target, ratio, rebalance=rebalance)
    again = ratio_of(filled, target)
    if within(again, tolerance) or (ratio < 1.0 < again) or (again < 1.0 < ratio):
        return spec_replicas
    replicas = math.ceil(again * len(filled))
    contradicts = replicas > spec_replicas if again < 1.0 else replicas < spec_replicas
    return spec_replicas if contradicts else replicas


def _filled(groups: Groups, target: Milli, ratio: float, *, rebalance: bool) -> list[Milli]:
    """With what is assumed of the others: at the target on the way down, idle on the way up."""
    missing = [target if ratio < 1.0 else 0] * groups.missing
    return [*groups.values, *missing, *[0] * (groups.unready if rebalance else 0)]


def total_metric(
    target: Milli,
    status_replicas: int,
    total: Milli | None,
    tolerance: float = TOLERANCE,
) -> int | None:
    """An `External` or `Object` metric with an AverageValue; None when it cannot be read.

    Neither missing nor unready pods are looked at. With no replica at all any load is out of
    tolerance.
    """
    if total is None:
        return None
    if status_replicas and within(total / (target * status_replicas), tolerance):
        return status_replicas
    return math.ceil(total / target)


def desired(spec_replicas: int, proposals: Sequence[int | None]) -> int | None:
    """The largest; None when nothing is to be done because a metric could not be read.

    A scale-down needs all of them.
    """
    known = [proposal for proposal in proposals if proposal is not None]
    if not known:
        return None
    most = max(known)
    return None if len(known) < len(proposals) and most < spec_replicas else most
