"""The page `docs/monitoring.md`: its tables are the alerts and the panels themselves."""

from deploy.monitoring.alerts import Alert, alerts
from deploy.monitoring.panels import ROWS, Panel, Row, Source

_TEXT = """\
# Monitoring

Alerts and a dashboard for the series of [metrics.md](metrics.md). This page, the PrometheusRule and
the dashboard are made by `python -m deploy.monitoring` of `deploy/monitoring/alerts.yaml` and
`deploy/monitoring/panels.py`; a test compares them.

## Install
The component is part of an overlay:

    components:
      - ../../components/hpa          # or keda; brings the PodMonitor. Without either: podmonitor
      - ../../components/monitoring

It makes two objects, which are found by their labels:

| object | who looks for it | by the label |
|---|---|---|
| PrometheusRule `tidegate` | the operator (`ruleSelector`) | `release: kube-prometheus-stack` |
| ConfigMap `tidegate-dashboards` | the sidecar of Grafana's chart | `grafana_dashboard: "1"` |

A release of kube-prometheus-stack by another name looks for that name: replace the label, here and
in the PodMonitor, with a patch in your overlay. What yours selects:

    kubectl get prometheus -A -o jsonpath='{{..ruleSelector}}{{..ruleNamespaceSelector}}'

The sidecar looks into all namespaces when `sidecar.dashboards.searchNamespace` is `ALL`.

- Prometheus without the operator: `rule_files: [deploy/monitoring/alerts.yaml]`. The targets need
  the labels `namespace`, `pod` and `container` (`tidegate`).
- Grafana without the sidecar: import `deploy/k8s/components/monitoring/tidegate.json`.
- `kube_…` series come from kube-state-metrics and `container_…` from the kubelet;
  kube-prometheus-stack has both. Without them the alerts and panels that name them are silent and
  empty, the others work.

## Alerts
| alert | severity | after | what it means |
|---|---|---|---|
{alerts}

Each says what to do in its annotation `runbook`. Thresholds that depend on what you promise:
`TidegatePendingHigh` is twice the HPA's target for pending, `TidegatePendingAtMaxReplicas` the
target itself (a test compares both with the shipped HPA), and `TidegateTimeToFirstTokenHigh` is
10 s. Change them in `alerts.yaml`, or with a JSON patch of the PrometheusRule in your overlay.

To try a change:

    promtool test rules deploy/monitoring/alerts_test.yaml
    .venv/bin/python -m deploy.monitoring
    make test ARGS='tests/deploy'

## Dashboard
Variables: data source, namespace, model, pod.

| row | panels |
|---|---|
{rows}

Panels with a star show series of kube-state-metrics, with two stars of the kubelet.

## What was run
- Each alert has a unit test that fires it and one of a case nearby that does not.
- Every query of the dashboard gives data in a Prometheus that scrapes two instances of the service
  under load, and none of another pod. The series of kube-state-metrics and of the kubelet were not
  theirs: the test writes a few samples by the names and labels of their documentation.
- The queries of prometheus-adapter's rule and of KEDA's triggers, as shipped, give one value for
  each pod and one in all, equal to the gauges of the services. The alert for a stalled engine fires
  when the engine's process is stopped, and clears when it goes on. `make e2e-monitoring` does this
  for a minute of changing load, with the alert's own 30 s; the suite for some seconds, with 3 s.
- Not run: Grafana, its sidecar, the Prometheus operator and kube-state-metrics.
"""

_STARS = {Source.SERVICE: "", Source.CLUSTER: "\\*", Source.NODE: "\\*\\*"}


def page() -> str:
    """The page's text."""
    return _TEXT.format(alerts="\n".join(map(_alert, alerts())), rows="\n".join(map(_row, ROWS)))


def _alert(alert: Alert) -> str:
    wait = "at once" if alert.wait == "0m" else alert.wait
    return f"| `{alert.name}` | {alert.severity} | {wait} | {alert.annotations['summary']} |"


def _row(row: Row) -> str:
    return f"| {row.title} | {', '.join(map(_panel, row.panels))} |"


def _panel(panel: Panel) -> str:
    return f"{panel.title}{_STARS[panel.source]}"
