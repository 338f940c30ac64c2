"""The shipped tree is clean; a copy in which one thing is broken is not, and the line says what."""

from pathlib import Path

import pytest

from deploy.check.metrics import Series
from deploy.check.rules import check
from deploy.check.served import engine_arguments
from deploy.check.tree import read
from tests.deploy.breaks import BREAKS, SETTINGS
from tests.deploy.breaks_scaling import SCALING_BREAKS
from tests.deploy.conftest import DEPLOY, Check

EVERY_BREAK = BREAKS | SCALING_BREAKS
SECOND_SCALER = """\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: second}
spec:
  scaleTargetRef: {name: tidegate}
  triggers: [{type: cpu, metadata: {value: "50"}}]
"""
ALERTS = """\
groups:
  - name: a
    rules:
      - alert: Stuck
        expr: tidegate_phase{phase="redy"} == 1 and up{container="tidegate"} == 1
        annotations: {summary: "{{ $labels.podd }}"}
"""


@pytest.mark.timeout(600)
def test_the_shipped_tree_is_clean(kubectl: Path, scraped: Series) -> None:
    tree = read(DEPLOY, kubectl)
    assert {overlay.name for overlay in tree.overlays} >= {"overlays/gpu-hpa", "overlays/gpu-keda"}
    assert [str(finding) for finding in check(tree, scraped)] == []
    # What nobody would apply as it is, is looked at too.
    assert "components/keys" in {overlay.name for overlay in tree.overlays}
    # vllm's own parser, last: it imports the engine.
    assert [str(finding) for finding in engine_arguments(tree.overlays)] == []


@pytest.mark.parametrize("name", EVERY_BREAK)
def test_what_is_broken_is_named(name: str, copy: Path, check_copy: Check) -> None:
    broken = EVERY_BREAK[name]
    file = copy / broken.file
    text = file.read_text("utf-8")
    assert broken.old in text
    file.write_text(text.replace(broken.old, broken.new), "utf-8")
    (copy / "k8s/overlays/gpu-hpa/second.yaml").write_text(SECOND_SCALER, "utf-8")
    lines = [str(finding) for finding in check_copy(broken.rendered)]
    assert [line for line in lines if all(part in line for part in broken.said)], lines


def test_hpa_and_keda_together_are_refused(copy: Path, check_copy: Check) -> None:
    file = copy / "k8s/overlays/gpu-hpa/kustomization.yaml"
    text = file.read_text("utf-8")
    both = "  - ../../components/hpa\n"
    file.write_text(text.replace(both, both + "  - ../../components/keda\n"), "utf-8")
    lines = [str(finding) for finding in check_copy("overlays/gpu-hpa")]
    assert [line for line in lines if "overlays/gpu-hpa" in line and "hpa and keda" in line], lines


def test_rules_of_prometheus_are_read_and_their_tests_run(copy: Path, check_copy: Check) -> None:
    (copy / "alerts.yaml").write_text(ALERTS, "utf-8")
    lines = "\n".join(map(str, check_copy("overlays/gpu")))
    assert "tidegate_phase has no phase redy" in lines
    assert "no label podd" in lines
    (copy / "alerts.yaml").write_text(ALERTS.replace("== 1 and", "=== 1 and"), "utf-8")
    assert "alerts.yaml" in "\n".join(map(str, check_copy("overlays/gpu")))
    (copy / "alerts.yaml").write_text(
        ALERTS.replace("redy", "ready").replace("podd", "pod"), "utf-8"
    )
    (copy / "alerts_test.yaml").write_text(
        "rule_files: [alerts.yaml]\ntests:\n  - alert_rule_test:\n"
        "      - {alertname: Stuck, eval_time: 1m, exp_alerts: [{exp_labels: {}}]}\n",
        "utf-8",
    )
    lines = "\n".join(map(str, check_copy("overlays/gpu")))
    assert "alerts_test.yaml" in lines
    assert "FAILED" in lines


def test_an_argument_that_vllm_does_not_know_is_named(copy: Path, kubectl: Path) -> None:
    file = copy / SETTINGS
    file.write_text(file.read_text("utf-8").replace("max_model_len", "max_modl_len"), "utf-8")
    (line,) = map(str, engine_arguments(read(copy, kubectl, ["overlays/gpu"]).overlays))
    assert "overlays/gpu: Deployment/tidegate: " in line
    assert "engine.max_modl_len" in line
