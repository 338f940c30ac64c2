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
    """Of the manifests, to break something in them; not of the dashboards, which take time."""
    ignored = shutil.ignore_patterns("*.py", "*.sh", "__pycache__", "monitoring")
    return Path(shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=ignored))


@pytest.fixture
def check_copy(copy: Path, kubectl: Path, scraped: Series) -> Check:
    """The whole check of the copy, of some overlays only if they are named."""
    return lambda *only: check(read(copy, kubectl, only), scraped)
