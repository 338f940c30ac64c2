"""The check that keeps an image from holding other versions than those that were tested."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.check_versions import FRONT_END, differences, pins
from tests.rig.server import ROOT

SCRIPT = ROOT / "deploy" / "check_versions.py"
LOCK = ROOT / "config" / "cpu.lock"


def check(lock: str, *packages: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), lock, *packages]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("tested", "installed", "said"),
    [
        ({"a": "1.0"}, {"a": "1.0"}, []),
        ({"a": "1.0"}, {"a": "1.0+cu130"}, []),
        ({"a": "1.0+cpu"}, {"a": "1.0"}, ["a is 1.0, but 1.0+cpu was tested"]),
        ({"a": "1.0"}, {"a": "1.0.1"}, ["a is 1.0.1, but 1.0 was tested"]),
        ({"a": "1.0"}, {}, ["a is not installed, but 1.0 was tested"]),
        ({}, {"a": "1.0"}, ["a is not in the lock"]),
    ],
)
def test_a_difference_names_the_package_and_both_versions(
    tested: dict[str, str], installed: dict[str, str], said: list[str]
) -> None:
    assert list(differences(["a"], tested, installed.get)) == said


def test_the_pins_of_a_lock_are_read() -> None:
    lock = "# a==0\nb-c==1.2.post1 \\\n    --hash=sha256:00==\nd==3+cpu ; sys_platform == 'linux'\n"
    assert pins(lock) == {"b-c": "1.2.post1", "d": "3+cpu"}


def test_the_versions_of_this_environment_pass() -> None:
    result = check(str(LOCK))
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("package", FRONT_END)
def test_another_version_stops_the_build(package: str, tmp_path: Path) -> None:
    lock = tmp_path / "other.lock"
    pattern = rf"^{package}==\S+"
    lock.write_text(re.sub(pattern, f"{package}==0.0.1", LOCK.read_text(), flags=re.MULTILINE))
    result = check(str(lock))
    said = f"tidegate: {package} is {version(package)}, but 0.0.1 was tested\n"
    assert (result.returncode, result.stderr) == (1, said)


def test_a_package_that_is_named_is_what_is_checked() -> None:
    result = check(str(LOCK), "no-such-package")
    assert (result.returncode, result.stderr) == (
        1,
        "tidegate: no-such-package is not in the lock\n",
    )
