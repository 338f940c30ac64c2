"""The autoscalers: one for a workload, targets that can be reached, steps that cannot overshoot."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.check.findings import Findings
from deploy.check.objects import Object, dig
from deploy.check.promql import names
from deploy.check.quantities import quantity
from deploy.check.served import Served, served
from deploy.check.tree import Overlay

PENDING: Final = "vllm_pending_requests"
RUNNING: Final = "vllm_running_requests"
DEMAND: Final = "tidegate_demand_sequences"

# Of KEDA's trigger `prometheus`; its model lets any key through.
_TRIGGER: Final = frozenset(
    (
        "serverAddress",
        "query",
        "threshold",
        "activationThreshold",
        "ignoreNullValues",
        "namespace",
        "authModes",
        "customHeaders",
        "queryParameters",
        "timeout",
        "unsafeSsl",
    )
)

START_UP_S: Final = 60
"""No model is loaded faster; a scale-up that may be repeated sooner orders pods twice."""


@dataclass(frozen=True)
class Keys:
    """Where a kind of autoscaler has what."""

    least: str
    most: str
    metrics: str
    behavior: str


HPA: Final = Keys("spec.minReplicas", "spec.maxReplicas", "spec.metrics", "spec.behavior")
KEDA: Final = Keys(
    "spec.minReplicaCount",
    "spec.maxReplicaCount",
    "spec.triggers",
    "spec.advanced.horizontalPodAutoscalerConfig.behavior",
)


@dataclass(frozen=True)
class Scaler:
    """An HPA, or what KEDA makes one of."""

    found: Object
    keys: Keys
    least: int
    most: int
    behavior: Mapping[str, Any]
    targets: Sequence[tuple[str, str, float]]
    """Metric, key, and the target for each pod."""

    @property
    def adapted(self) -> bool:
        """Whether its metrics come from prometheus-adapter; KEDA asks Prometheus itself."""
        return self.keys is HPA

    @property
    def workload(self) -> tuple[str, str]:
        """Kind and name of what it scales."""
        target = dig(self.found, "spec.scaleTargetRef", {})
        return target.get("kind", "Deployment"), target.get("name", "")


def scalers(overlay: Overlay) -> list[Scaler]:
    """Of both kinds."""
    hpas = (_of_hpa(found) for found in overlay.of_kind("HorizontalPodAutoscaler"))
    return [*hpas, *(_of_keda(found) for found in overlay.of_kind("ScaledObject"))]


def _of_hpa(found: Object) -> Scaler:
    targets = [
        (dig(metric, "pods.metric.name", ""), f"spec.metrics[{i}]", target)
        for i, metric in enumerate(dig(found, "spec.metrics", []))
        if (target := _number(dig(metric, "pods.target.averageValue"))) is not None
    ]
    least, most = dig(found, HPA.least, 1), dig(found, HPA.most, 0)
    return Scaler(found, HPA, least, most, dig(found, HPA.behavior, {}), targets)


def _of_keda(found: Object) -> Scaler:
    targets = [
        (name, f"spec.triggers[{i}].metadata.threshold", target)
        for i, trigger in enumerate(dig(found, "spec.triggers", []))
        if (target := _number(dig(trigger, "metadata.threshold"))) is not None
        for name in sorted(names(dig(trigger, "metadata.query", "")))
    ]
    # KEDA's own defaults.
    least, most = dig(found, KEDA.least, 0), dig(found, KEDA.most, 100)
    return Scaler(found, KEDA, least, most, dig(found, KEDA.behavior, {}), targets)


def _number(value: Any) -> float | None:
    try:
        return None if value is None else quantity(value)
    except ValueError:
        return None


def alone(overlay: Overlay) -> Findings:
    """No two autoscalers for one workload, and no replicas in what one owns."""
    owners: dict[tuple[str, str], Object] = {}
    for scaler in scalers(overlay):
        kind, name = scaler.workload
        workload = overlay.find(kind, name)
        if workload is None:
            yield overlay.finding(scaler.found, "spec.scaleTargetRef", f"there is no {kind}/{name}")
        elif "replicas" in workload["spec"]:
            yield overlay.finding(workload, "spec.replicas", "is the autoscaler's to say")
        if other := owners.get((kind, name)):
            problem = f"{kind}/{name} has an autoscaler already: {other['kind']}"
            yield overlay.finding(scaler.found, "spec.scaleTargetRef", problem)
        owners[kind, name] = scaler.found


def bounds(overlay: Overlay) -> Findings:
    """At least one pod: metrics that live in the pods wake nobody. And room to scale."""
    for scaler in scalers(overlay):
        if scaler.least < 1:
            problem = f"{scaler.least}: from there the pods' own metrics never wake one"
            yield overlay.finding(scaler.found, scaler.keys.least, problem)
        if scaler.most <= scaler.least:
            problem = f"{scaler.most} is not above the minimum of {scaler.least}"
            yield overlay.finding(scaler.found, scaler.keys.most, problem)


def targets(overlay: Overlay) -> Findings:
    """Targets that can be passed, on metrics that hold at a constant load."""
    for scaler in scalers(overlay):
        found = {name for name, _, _ in scaler.targets}
        if not found & {RUNNING, DEMAND}:
            problem = (
                f"{PENDING} is 0 while there are free slots: without {RUNNING} beside it, or "
                f"{DEMAND}, it flaps"
            )
            yield overlay.finding(scaler.found, scaler.keys.metrics, problem)
        for item in served(overlay):
            if _scales(scaler, item):
                yield from _reachable(scaler, item)
                yield from _visible(scaler, item, found)


def _scales(scaler: Scaler, item: Served) -> bool:
    owner = item.pods.owner
    return (owner["kind"], owner["metadata"]["name"]) == scaler.workload


def _reachable(scaler: Scaler, item: Served) -> Findings:
    engine = item.settings.engine
    slots = engine.max_num_seqs * int((engine.model_extra or {}).get("data_parallel_size", 1))
    limits = {
        RUNNING: (slots, f"engine.max_num_seqs ({slots}), which running never passes"),
        DEMAND: (slots, f"engine.max_num_seqs ({slots}), what one pod can run"),
    }
    waiting = item.settings.effective_max_pending
    for name, key, target in scaler.targets:
        limit, words = limits.get(name, (float("inf"), ""))
        if target >= limit:
            yield item.overlay.finding(
                scaler.found, key, f"{name}: {target:g} is not below {words}"
            )
        if name == PENDING and target > waiting / 2:
            yield item.overlay.finding(
                scaler.found,
                key,
                f"{name}: {target:g} is above half of the {waiting} that the door lets wait",
            )


def _visible(scaler: Scaler, item: Served, found: set[str]) -> Findings:
    slo = item.settings.admission.ttft_slo_s
    if slo is not None and DEMAND not in found:
        problem = f"admission.ttft_slo_s ({slo:g}) keeps pending short: scale on {DEMAND}"
        yield item.overlay.finding(scaler.found, scaler.keys.metrics, problem)


def steps(overlay: Overlay) -> Findings:
    """Up no faster than pods start, down no faster than they drain and only after a lull."""
    for scaler in scalers(overlay):
        up, down = (scaler.behavior.get(key, {}) for key in ("scaleUp", "scaleDown"))
        for direction in ("scaleUp", "scaleDown"):
            if not dig(scaler.behavior, f"{direction}.policies"):
                key = f"{scaler.keys.behavior}.{direction}.policies"
                yield overlay.finding(scaler.found, key, "missing: by default 100 % each 15 s")
        period_s = min(_periods(up), default=START_UP_S)
        if period_s < START_UP_S:
            key = f"{scaler.keys.behavior}.scaleUp.policies"
            problem = f"each {period_s} s is again before the pods of the last time have started"
            yield overlay.finding(scaler.found, key, problem)
        window_s = down.get("stabilizationWindowSeconds", 300)
        if window_s < 3 * period_s:
            key = f"{scaler.keys.behavior}.scaleDown.stabilizationWindowSeconds"
            problem = f"{window_s} s is less than three start-ups ({period_s} s each)"
            yield overlay.finding(scaler.found, key, problem)
        yield from _drains(overlay, scaler, min(_periods(down), default=0))


def _drains(overlay: Overlay, scaler: Scaler, period_s: int) -> Findings:
    for item in served(overlay):
        grace = item.pods.spec.get("terminationGracePeriodSeconds", 30)
        if _scales(scaler, item) and 0 < period_s < grace:
            key = f"{scaler.keys.behavior}.scaleDown.policies"
            problem = f"each {period_s} s is again before the last pod has drained ({grace} s)"
            yield overlay.finding(scaler.found, key, problem)


def _periods(direction: Mapping[str, Any]) -> Iterator[int]:
    return (policy["periodSeconds"] for policy in direction.get("policies", ()))


def keda(overlay: Overlay) -> Findings:
    """A query gives one value, of this workload's pods alone; silence is no reason to shrink."""
    for found in overlay.of_kind("ScaledObject"):
        for index, trigger in enumerate(dig(found, "spec.triggers", [])):
            key = f"spec.triggers[{index}].metadata"
            metadata = trigger.get("metadata", {})
            for name, problem in _trigger(trigger, metadata):
                yield overlay.finding(found, f"spec.triggers[{index}].{name}", problem)
            for problem in _query(found, metadata.get("query", "")):
                yield overlay.finding(found, f"{key}.query", problem)
            if metadata.get("ignoreNullValues") != "false":
                yield overlay.finding(
                    found, f"{key}.ignoreNullValues", "an empty answer would count as no load"
                )
        if (
            dig(found, "spec.fallback.behavior", "static") == "static"
            and "fallback" in found["spec"]
        ):
            yield overlay.finding(
                found, "spec.fallback.behavior", "static: without Prometheus a large fleet shrinks"
            )


def _trigger(trigger: Object, metadata: Object) -> Iterator[tuple[str, str]]:
    if trigger.get("type") != "prometheus":
        yield "type", f"{trigger.get('type')} is not prometheus"
    if trigger.get("metricType", "AverageValue") != "AverageValue":
        yield "metricType", f"{trigger['metricType']}: the sum of all pods for the target of one"
    for name in metadata.keys() - _TRIGGER:
        yield f"metadata.{name}", "unknown key in a trigger of type prometheus"
    for name in ("serverAddress", "query", "threshold"):
        if name not in metadata:
            yield f"metadata.{name}", "is missing"


def _query(found: Object, query: str) -> Iterator[str]:
    if not query.startswith("sum(max by (pod) ("):
        yield "is not sum(max by (pod) (…)): one value, and no pod twice"
    namespace = dig(found, "metadata.namespace")
    if f'namespace="{namespace}"' not in query:
        yield f"is not of namespace {namespace}"
    name = dig(found, "spec.scaleTargetRef.name")
    pattern = re.search(r'pod=~"([^"]*)"', query)
    own, other = f"{name}-6d4cf56db6-x7k2p", f"{name}-other-6d4cf56db6-x7k2p"
    if pattern is None or not re.fullmatch(pattern[1], own) or re.fullmatch(pattern[1], other):
        yield f"is not of the pods of {name} alone, such as {own}"
