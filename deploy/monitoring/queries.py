"""PromQL for the panels, of the pods that are chosen in the dashboard.

`$namespace`, `$model` and `$pod` are the dashboard's variables. A query about the service names all
three, so that no other pod's series gets in.
"""

from dataclasses import dataclass

PODS = 'namespace=~"$namespace",model_name=~"$model",pod=~"$pod"'
"""Series of the service's own."""
PROCESSES = 'namespace=~"$namespace",pod=~"$pod",container="tidegate"'
"""Series that know the pod and not the model."""
CLUSTER = 'namespace=~"$namespace"'
"""Series about what owns the pods."""
WINDOW = "$__rate_interval"


@dataclass(frozen=True)
class Query:
    """PromQL, and how its series are called: labels in `{{…}}`."""

    expression: str
    legend: str


def each(series: str) -> tuple[Query, ...]:
    """A gauge, one line for each pod."""
    return (Query(f"{series}{{{PODS}}}", "{{pod}}"),)


def rate(series: str, by: str, legend: str | None = None) -> Query:
    """A counter's rate over all pods, by labels (`status, reason`)."""
    summed = f"sum by ({by}) (rate({series}{{{PODS}}}[{WINDOW}]))"
    return Query(summed, legend or f"{{{{{by}}}}}")


def quantiles(series: str, *chosen: float) -> tuple[Query, ...]:
    """Quantiles of a histogram over all pods; the median and two of the tail by default."""
    rates = f"sum by (le) (rate({series}_bucket{{{PODS}}}[{WINDOW}]))"
    return tuple(
        Query(f"histogram_quantile({quantile}, {rates})", f"p{100 * quantile:g}")
        for quantile in chosen or (0.5, 0.95, 0.99)
    )


# A pod of a Deployment is called after it, NAME-HASH-HASH, and a leader of a group NAME-NUMBER.
_DEPLOYMENTS = (
    f"label_replace(label_replace(group by (namespace, pod) (vllm_pending_requests{{{PODS}}}), "
    '"deployment", "$1", "pod", "(.+)-[^-]+-[^-]+"), "deployment", "$1", "pod", "(.+)-[0-9]{1,3}")'
)


def deployment(series: str, legend: str) -> Query:
    """Of the Deployments that the chosen pods belong to."""
    own = f"max by (namespace, deployment) ({series}{{{CLUSTER}}})"
    return Query(
        f"{own} and on (namespace, deployment) {_DEPLOYMENTS}", f"{{{{deployment}}}} {legend}"
    )


def autoscaler(series: str, legend: str, *by: str) -> Query:
    """Of the HPAs that scale them, KEDA's included."""
    key = ", ".join(("namespace", "horizontalpodautoscaler", *by))
    target = (
        "group by (namespace, horizontalpodautoscaler, scaletargetref_name) "
        f"(kube_horizontalpodautoscaler_info{{{CLUSTER}}})"
    )
    known = (
        f"max by ({key}) ({series}{{{CLUSTER}}}) * on (namespace, horizontalpodautoscaler) "
        f"group_left (scaletargetref_name) {target}"
    )
    named = f'label_replace({known}, "deployment", "$1", "scaletargetref_name", "(.+)")'
    shown = "".join(f"{{{{{name}}}}} " for name in ("deployment", *by))
    return Query(f"{named} and on (namespace, deployment) {_DEPLOYMENTS}", f"{shown}{legend}")
