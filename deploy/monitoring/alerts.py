"""The alerts as their file has them, and the PrometheusRule of the same text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("alerts.yaml")

_HEAD = """\
# Made by `python -m deploy.monitoring` of deploy/monitoring/alerts.yaml: change that.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tidegate
  labels:
    # What a Prometheus of kube-prometheus-stack selects by default (its ruleSelector).
    release: kube-prometheus-stack
spec:
"""


@dataclass(frozen=True)
class Alert:
    """One alerting rule."""

    name: str
    expression: str
    wait: str
    severity: str
    annotations: dict[str, str]


def groups() -> list[dict[str, Any]]:
    """The groups of rules, as they are written."""
    read: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
    return read


def alerts() -> list[Alert]:
    """In the order of the file."""
    return [
        Alert(
            name=rule["alert"],
            expression=rule["expr"],
            wait=rule.get("for", "0m"),
            severity=rule["labels"]["severity"],
            annotations=rule["annotations"],
        )
        for group in groups()
        for rule in group["rules"]
    ]


def prometheus_rule() -> str:
    """The custom resource that the Prometheus operator loads."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    body = lines[lines.index("groups:") :]
    return _HEAD + "".join(f"  {line}".rstrip() + "\n" for line in body)
