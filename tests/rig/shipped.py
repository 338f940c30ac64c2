"""The queries of the autoscalers, as the manifests in `deploy/k8s` have them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.rig.server import ROOT

COMPONENTS = ROOT / "deploy" / "k8s" / "components"


def hpa_metrics() -> list[str]:
    """The pods' metrics that prometheus-adapter is asked for, with a strict SLO or without."""
    (hpa,) = _documents(COMPONENTS / "hpa" / "hpa.yaml")
    (patch,) = yaml.safe_load((COMPONENTS / "hpa-slo" / "hpa.yaml").read_text(encoding="utf-8"))
    metrics = [*hpa["spec"]["metrics"], *patch["value"]]
    return [metric["pods"]["metric"]["name"] for metric in metrics]


def adapter_series() -> str:
    """The selector by which prometheus-adapter finds what it offers."""
    return str(_adapter_rule()["seriesQuery"])


def adapter_query(series: str, namespace: str, pods: Sequence[str]) -> str:
    """What prometheus-adapter asks when it is asked for a metric of these pods.

    Its rule gives the metric the name of the series, so that one is asked for by the other.
    """
    rule = _adapter_rule()
    assert rule["name"] == {"matches": "^(.*)$", "as": "${1}"}
    labels = {of["resource"]: label for label, of in rule["resources"]["overrides"].items()}
    chosen = f'{labels["namespace"]}="{namespace}",{labels["pod"]}=~"{"|".join(pods)}"'
    filled = {"Series": series, "LabelMatchers": chosen, "GroupBy": labels["pod"]}
    query = str(rule["metricsQuery"])
    for name, text in filled.items():
        assert f"<<.{name}>>" in query
        query = query.replace(f"<<.{name}>>", text)
    return query


def keda_queries() -> list[str]:
    """Of each Prometheus trigger of the ScaledObject."""
    return [
        trigger["metadata"]["query"]
        for path in sorted((COMPONENTS / "keda").glob("*.yaml"))
        for document in _documents(path)
        if document["kind"] == "ScaledObject"
        for trigger in document["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    ]


def _adapter_rule() -> Mapping[str, Any]:
    (values,) = _documents(COMPONENTS / "hpa" / "prometheus-adapter.yaml")
    (rule,) = values["rules"]["custom"]
    found: Mapping[str, Any] = rule
    return found


def _documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]
