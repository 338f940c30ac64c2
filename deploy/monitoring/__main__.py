"""Writes what is made of the alerts and the panels: `python -m deploy.monitoring`."""

from collections.abc import Callable
from pathlib import Path

from deploy.monitoring.alerts import prometheus_rule
from deploy.monitoring.dashboard import dashboard
from deploy.monitoring.page import page

ROOT = Path(__file__).parents[2]
COMPONENT = ROOT / "deploy" / "k8s" / "components" / "monitoring"

MADE: dict[Path, Callable[[], str]] = {
    COMPONENT / "prometheusrule.yaml": prometheus_rule,
    COMPONENT / "tidegate.json": dashboard,
    ROOT / "docs" / "monitoring.md": page,
}

if __name__ == "__main__":
    for path, make in MADE.items():
        path.write_text(make(), encoding="utf-8")
