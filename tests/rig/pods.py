"""Services as if they were pods: the labels that Prometheus gives them, and what watches them."""

from collections.abc import Mapping
from typing import TypeAlias

from tests.rig.prometheus import Labels, Prometheus, Target
from tests.rig.samples import total
from tests.rig.service import Service
from tests.rig.shipped import adapter_rule, hpa_metrics, keda_queries

NAMESPACE = "tidegate"
NAMES = ("tidegate-6c5d8f7b9-bq4xz", "tidegate-6c5d8f7b9-zk7mw")
"""As a Deployment calls its pods."""

STALLED = "TidegateEngineStalled"

Values: TypeAlias = dict[str, float]
"""Of each pod, or of each query."""

_HPA = f'namespace="{NAMESPACE}",horizontalpodautoscaler="tidegate"'
_TARGETS = {"vllm_pending_requests": 4, "vllm_running_requests": 24}


def targets(pods: Mapping[str, Service]) -> list[Target]:
    """With the labels of a PodMonitor's targets."""
    common = {"namespace": NAMESPACE, "container": "tidegate"}
    return [Target(pod.ops_url, {**common, "pod": name}) for name, pod in pods.items()]


def cluster_series() -> str:
    """A few samples of kube-state-metrics and of the kubelet, by their documentation."""
    target = 'scaletargetref_kind="Deployment",scaletargetref_name="tidegate"'
    unable = 'condition="ScalingActive",status="false"'
    lines = [
        f'kube_deployment_status_replicas_ready{{namespace="{NAMESPACE}",deployment="tidegate"}} 2',
        f"kube_horizontalpodautoscaler_info{{{_HPA},{target}}} 1",
        f"kube_horizontalpodautoscaler_status_desired_replicas{{{_HPA}}} 2",
        f"kube_horizontalpodautoscaler_spec_max_replicas{{{_HPA}}} 8",
        f"kube_horizontalpodautoscaler_status_condition{{{_HPA},{unable}}} 0",
    ]
    for name, value in _TARGETS.items():
        labels = f'{_HPA},metric_name="{name}",metric_target_type="average"'
        lines += [
            f"kube_horizontalpodautoscaler_spec_target_metric{{{labels}}} {value}",
            f"kube_horizontalpodautoscaler_status_target_metric{{{labels}}} 1",
        ]
    for name in NAMES:
        labels = f'namespace="{NAMESPACE}",pod="{name}",container="tidegate"'
        lines += [
            f"kube_pod_container_status_ready{{{labels}}} 1",
            f"container_cpu_usage_seconds_total{{{labels}}} 1",
            f"container_memory_working_set_bytes{{{labels}}} 1e9",
        ]
    return "\n".join([*lines, ""])


def own_gauges(pods: Mapping[str, Service]) -> dict[str, Values]:
    """What each service says of itself: by metric of the HPA, and pod."""
    samples = {name: pod.metrics() for name, pod in pods.items()}
    return {
        metric: {name: total(samples[name], metric) for name in pods} for metric in hpa_metrics()
    }


def adapter_answers(prometheus: Prometheus) -> dict[str, Values]:
    """What the HPA gets, nothing for what is not offered. Fails when a pod has several values."""
    rule = adapter_rule()
    series = rule.offered(prometheus.named(rule.series))
    queries = {
        metric: rule.pods(series[metric], NAMESPACE, NAMES)
        for metric in hpa_metrics()
        if metric in series
    }
    found = {metric: _by_pod(prometheus.query(query)) for metric, query in queries.items()}
    return {metric: found.get(metric, {}) for metric in hpa_metrics()}


def keda_answers(prometheus: Prometheus) -> Values:
    """What KEDA gets for each of its queries. Fails when that is more than one value."""
    answers: Values = {}
    for query in keda_queries():
        found = list(prometheus.query(query).values())
        assert len(found) <= 1, f"{query}: {found}"
        if found:
            answers[query] = found[0]
    return answers


def _by_pod(found: Mapping[Labels, float]) -> Values:
    """One value for a pod, which no other label tells from others."""
    assert all({key for key, _ in labels} == {"pod"} for labels in found), found
    return {dict(labels)["pod"]: value for labels, value in found.items()}


def as_keda_adds(gauges: Mapping[str, Values]) -> Values:
    """What KEDA's queries must give: the sum over the pods of the metric that each is about."""
    sums = {metric: sum(values.values()) for metric, values in gauges.items()}
    return {
        query: next(value for metric, value in sums.items() if metric in query)
        for query in keda_queries()
    }


def stalls(prometheus: Prometheus) -> set[str]:
    """The pods whose engine is reported to hang. Fails when anything else is reported."""
    firing = [alert["labels"] for alert in prometheus.firing()]
    assert {labels["alertname"] for labels in firing} <= {STALLED}, firing
    return {labels["pod"] for labels in firing}
