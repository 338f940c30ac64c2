"""What the tests of the check share: kubectl, and a scrape of the real service."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.check.__main__ import KUBECTL
from deploy.check.findings import Finding
from deploy.check.metrics import Series, series
from deploy.check.rules import check
from deploy.check.scrape import scrape, use
from deploy.check.tree import read
from tests.rig.server import ROOT
from tests.rig.service import Service

DEPLOY = ROOT / "deploy"

Check = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def kubectl() -> Path:
    path = ROOT / KUBECTL
    assert path.exists(), "deploy/kubectl.sh fetches it"
    return path


@pytest.fixture(scope="session")
def scraped(service: Service) -> Series:
    use(service.url, "tiny")
    return series(scrape(f"{service.ops_url}/metrics"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Of the manifests, to break something in them; what takes time is left out: the dashboard's
    panels and the alerts' unit tests.
    """
    ignored = shutil.ignore_patterns("*.py", "*.sh", "__pycache__")
    copied = Path(shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=ignored))
    shutil.rmtree(copied / "monitoring")
    (copied / "k8s/components/monitoring/tidegate.json").write_text("{}")
    return copied


@pytest.fixture
def check_copy(copy: Path, kubectl: Path, scraped: Series) -> Check:
    """The whole check of the copy, of some overlays only if they are named."""
    return lambda *only: check(read(copy, kubectl, only), scraped)
