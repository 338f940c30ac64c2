"""Rules and their tests, by Prometheus' own tool."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from deploy.check.findings import Finding, Findings
from deploy.check.objects import Object, dig
from deploy.check.tree import Tree

_RUN_S = 120.0


def rules(tree: Tree) -> Findings:
    """Files of rules, and the rules in PrometheusRule objects, are well-formed."""
    for document in tree.documents:
        found = document.content
        if isinstance(found, dict) and "groups" in found:
            yield from _told(document.name, ["check", "rules", str(tree.root / document.name)])
    for overlay in tree.overlays:
        for rule in overlay.of_kind("PrometheusRule"):
            yield from _rendered(overlay.name, rule)


def unit_tests(tree: Tree) -> Findings:
    """The tests of rules pass."""
    for document in tree.documents:
        if isinstance(document.content, dict) and "rule_files" in document.content:
            yield from _told(document.name, ["test", "rules", str(tree.root / document.name)])


def _rendered(where: str, rule: Object) -> Findings:
    with tempfile.TemporaryDirectory(prefix="deploy-check-") as scratch:
        file = Path(scratch, "rules.yaml")
        file.write_text(yaml.safe_dump({"groups": dig(rule, "spec.groups")}), "utf-8")
        yield from _told(
            f"{where}: PrometheusRule/{rule['metadata']['name']}", ["check", "rules", str(file)]
        )


def _told(where: str, command: list[str]) -> Findings:
    try:
        ran = subprocess.run(
            ["promtool", *command], capture_output=True, text=True, timeout=_RUN_S, check=False
        )
    except FileNotFoundError:
        yield Finding(where, "", "", "promtool is not installed: deploy/debian.sh prometheus")
        return
    if ran.returncode:
        yield Finding(where, "", "", " ".join(_lines(ran.stdout + ran.stderr)))


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())
