"""The queries of the autoscalers, as the manifests in `deploy/k8s` have them."""

from pathlib import Path
from typing import Any

import yaml

from tests.rig.rule import Rule
from tests.rig.server import ROOT

COMPONENTS = ROOT / "deploy" / "k8s" / "components"


def hpa_metrics() -> list[str]:
    """The pods' metrics that prometheus-adapter is asked for, with a strict SLO or without."""
    (hpa,) = _documents(COMPONENTS / "hpa" / "hpa.yaml")
    (patch,) = yaml.safe_load((COMPONENTS / "hpa-slo" / "hpa.yaml").read_text(encoding="utf-8"))
    metrics = [*hpa["spec"]["metrics"], *patch["value"]]
    return [metric["pods"]["metric"]["name"] for metric in metrics]


def adapter_rule() -> Rule:
    """What makes our series metrics of the pods, for prometheus-adapter."""
    (values,) = _documents(COMPONENTS / "hpa" / "prometheus-adapter.yaml")
    (rule,) = values["rules"]["custom"]
    return Rule.parse(rule)


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


def _documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]
