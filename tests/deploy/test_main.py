"""The command."""

from pathlib import Path

import pytest

from deploy.check.__main__ import main
from tests.deploy.breaks import HPA
from tests.rig.service import Service


def test_findings_are_lines_and_a_status(
    copy: Path, kubectl: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copy / HPA
    file.write_text(file.read_text("utf-8").replace("maxReplicas: 8", "maxReplicas: 1"), "utf-8")
    url = f"{service.ops_url}/metrics"
    assert main([str(copy), "--scrape", url, "--kubectl", str(kubectl)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    where = "overlays/gpu-hpa: HorizontalPodAutoscaler/tidegate: spec.maxReplicas: "
    assert f"{where}1 is not above the minimum of 1" in lines
    assert last.endswith(f"{len(lines)} findings")


def test_without_kubectl_it_says_where_it_comes_from(
    copy: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{service.ops_url}/metrics"
    assert main([str(copy), "--scrape", url, "--kubectl", "/nowhere/kubectl"]) == 1
    assert "deploy/kubectl.sh fetches it" in capsys.readouterr().out
