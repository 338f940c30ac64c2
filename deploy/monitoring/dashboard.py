"""Grafana's JSON of the panels. The same input gives the same bytes."""

import json
from typing import Any

from deploy.monitoring.panels import ROWS, Panel, Row, Source

UID = "tidegate"
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# From the widest to the narrowest: each offers what the ones before it leave.
_VARIABLES = (
    ("namespace", "Namespace", "label_values(vllm_pending_requests, namespace)"),
    ("model", "Model", 'label_values(vllm_pending_requests{namespace=~"$namespace"}, model_name)'),
    (
        "pod",
        "Pod",
        'label_values(vllm_pending_requests{namespace=~"$namespace",model_name=~"$model"}, pod)',
    ),
)


def dashboard() -> str:
    """The dashboard as a file for Grafana's provisioning."""
    whole = {
        "uid": UID,
        "title": "Tidegate",
        "description": "Made by `python -m deploy.monitoring`: change deploy/monitoring/panels.py.",
        "tags": ["tidegate", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), *(_variable(*given) for given in _VARIABLES)]},
        "panels": _panels(ROWS),
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        # On a change of the time range: pods come and go.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        # Without a value of its own for "all": that is the list, which is of our pods only.
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _panels(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"h": 1, "w": _COLUMNS * _WIDTH, "x": 0, "y": y}
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        for number, panel in enumerate(row.panels):
            line, column = divmod(number, _COLUMNS)
            place = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": y + 1 + line * _HEIGHT}
            made.append({"id": len(made) + 1, "gridPos": place, **_graph(panel)})
        y += 1 + _HEIGHT * -(-len(row.panels) // _COLUMNS)
    return made


def _graph(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": _description(panel),
        "datasource": _DATASOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": {"drawStyle": "line", "fillOpacity": 10, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {
            "legend": {
                "calcs": ["lastNotNull", "max"],
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "editorMode": "code",
                "expr": query.expression,
                "legendFormat": query.legend,
                "range": True,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _description(panel: Panel) -> str:
    if panel.source is Source.SERVICE:
        return panel.meaning
    return f"{panel.meaning} From {panel.source}."
