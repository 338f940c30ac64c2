"""Each alert is tested both ways, by tests that can fail; Kubernetes gets the same alerts."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.__main__ import COMPONENT
from deploy.monitoring.alerts import FILE, alerts, groups
from tests.rig.prometheus import promtool

TESTS = FILE.with_name("alerts_test.yaml")
HPA = COMPONENT.parent / "hpa" / "hpa.yaml"
NAMES = {alert.name for alert in alerts()}
EXPRESSIONS = {alert.name: alert.expression for alert in alerts()}

_SERIES = re.compile(r"\b(?:up|(?:vllm[_:]|tidegate_|kube_)\w+)\b")


def unit_tests() -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
    return read


def cases(*, fires: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The alert that a unit test is about, and the test."""
    for test in unit_tests():
        for case in test["alert_rule_test"]:
            if bool(case["exp_alerts"]) == fires:
                yield case["alertname"], test


def series_of(expression: str) -> set[str]:
    """The names of the series that an expression reads."""
    return set(_SERIES.findall(re.sub(r'"[^"]*"', "", expression)))


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    assert promtool("check", "rules", FILE)[0] == 0
    status, output = promtool("test", "rules", TESTS)
    assert (status, "FAILED" in output) == (0, False), output


@pytest.mark.parametrize("fires", [True, False])
def test_each_alert_has_a_unit_test_of_each_kind(fires: bool) -> None:
    assert {name for name, _ in cases(fires=fires)} == NAMES


def test_no_alert_is_quiet_for_want_of_what_it_reads() -> None:
    for name, test in cases(fires=False):
        given = {series["series"].split("{")[0] for series in test["input_series"]}
        assert series_of(EXPRESSIONS[name]) <= given, name


def test_the_series_of_an_expression_are_found() -> None:
    expression = 'sum by (up) (rate(vllm:x_total{pod="kube_y"}[5m])) / on (pod) tidegate_z > kube_y'
    assert series_of(expression) == {"up", "vllm:x_total", "tidegate_z", "kube_y"}


@pytest.mark.parametrize(
    ("fires", "broken"),
    [(True, "vector(1) > 2"), (False, "vector(1)")],
    ids=["that never fire", "that always fire"],
)
def test_the_unit_tests_notice_rules(fires: bool, broken: str, tmp_path: Path) -> None:
    def spoil(rule: dict[str, Any]) -> dict[str, Any]:
        return {**rule, "expr": broken, "for": "0s"}

    status, output = promtool("test", "rules", copied(tmp_path, spoil, fires=fires))
    assert status != 0
    assert set(re.findall(r"alertname: (\w+)", output)) == NAMES


def copied(
    directory: Path, change: Callable[[dict[str, Any]], dict[str, Any]], *, fires: bool
) -> Path:
    """The unit tests of one kind, beside rules that were changed."""
    changed = [{**group, "rules": [change(rule) for rule in group["rules"]]} for group in groups()]
    (directory / FILE.name).write_text(yaml.safe_dump({"groups": changed}))
    kept = [test for _, test in cases(fires=fires)]
    whole = {"rule_files": [FILE.name], "evaluation_interval": "1m", "tests": kept}
    path = directory / TESTS.name
    path.write_text(yaml.safe_dump(whole))
    return path


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    for alert in alerts():
        assert set(alert.annotations) == {"summary", "description", "runbook"}, alert.name
        assert alert.severity in {"critical", "warning", "info"}
        assert len(alert.annotations["runbook"]) < 250, "one or two lines"


def test_kubernetes_gets_the_rules_that_are_tested() -> None:
    made = yaml.safe_load((COMPONENT / "prometheusrule.yaml").read_text(encoding="utf-8"))
    assert made["kind"] == "PrometheusRule"
    assert made["spec"] == {"groups": groups()}
    described = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text(encoding="utf-8"))
    assert described["resources"] == ["prometheusrule.yaml"]


def test_what_is_too_many_pending_follows_from_the_hpa() -> None:
    (target,) = [
        float(metric["pods"]["target"]["averageValue"])
        for metric in yaml.safe_load(HPA.read_text(encoding="utf-8"))["spec"]["metrics"]
        if metric["pods"]["metric"]["name"] == "vllm_pending_requests"
    ]
    assert limit("TidegatePendingHigh") == 2 * target
    assert limit("TidegatePendingAtMaxReplicas") == target


def limit(alert: str) -> float:
    (found,) = re.findall(r"\) > ([\d.]+)", EXPRESSIONS[alert])
    return float(found)
