"""The dashboard and the page are of this code, and each query is of the chosen pods alone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.__main__ import COMPONENT, MADE
from deploy.monitoring.panels import ROWS, Panel
from deploy.monitoring.queries import CLUSTER, PODS, PROCESSES, Query

PANELS = [panel for row in ROWS for panel in row.panels]
QUERIES = [query for panel in PANELS for query in panel.queries]

_SELECTOR = re.compile(r"\b([a-z]\w+(?::\w+)?)\{([^}]*)\}")
_MATCHERS = {"kube_": CLUSTER, "process_": PROCESSES, "container_": PROCESSES}


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_made_is_of_this_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path](), "run python -m deploy.monitoring"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.expression[:60])
def test_each_selector_is_of_the_chosen_pods(query: Query) -> None:
    selectors = _SELECTOR.findall(query.expression)
    assert selectors
    for name, matchers in selectors:
        kind = name.split("_")[0] + "_"
        assert matchers == _MATCHERS.get(kind, PODS), name
    # Nothing is read without a selector.
    named = re.findall(r"\b(?:vllm[_:]|tidegate_|kube_|process_|container_)\w+", query.expression)
    assert len(named) == len(selectors)


def document() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((COMPONENT / "tidegate.json").read_text(encoding="utf-8"))
    return read


def test_the_dashboard_has_every_row_and_panel_in_order() -> None:
    shown = document()["panels"]
    assert [p["title"] for p in shown if p["type"] == "row"] == [row.title for row in ROWS]
    graphs = [p for p in shown if p["type"] != "row"]
    assert [p["title"] for p in graphs] == [panel.title for panel in PANELS]
    for graph, panel in zip(graphs, PANELS, strict=True):
        assert [t["expr"] for t in graph["targets"]] == [q.expression for q in panel.queries]


def test_no_two_panels_share_an_id_or_a_place() -> None:
    shown = document()["panels"]
    assert len({panel["id"] for panel in shown}) == len(shown)
    taken = [cell for panel in shown for cell in cells(panel["gridPos"])]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24, "the width of Grafana's grid"


def cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_every_variable_of_a_query_is_one_of_the_dashboard() -> None:
    defined = {variable["name"] for variable in document()["templating"]["list"]}
    used = {name for query in QUERIES for name in re.findall(r"\$([a-z]\w*)", query.expression)}
    assert used == defined - {"datasource"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_the_queries_of_a_panel_can_be_told_apart(panel: Panel) -> None:
    assert len({query.legend for query in panel.queries}) == len(panel.queries)


def test_the_component_ships_the_dashboard_to_the_sidecar() -> None:
    described = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text(encoding="utf-8"))
    (generated,) = described["configMapGenerator"]
    assert generated["files"] == ["tidegate.json"]
    assert generated["options"]["labels"] == {"grafana_dashboard": "1"}
