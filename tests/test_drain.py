"""Which process `python -m app drain` means."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from app.drain import NoService, drain, serves
from tests.rig.server import ROOT


@pytest.mark.parametrize(
    ("command", "is_service"),
    [
        (["python", "-m", "app"], True),
        (["/x/python3", "-W", "ignore", "-m", "app", "--config", "a.yaml"], True),
        (["python", "-m", "app", "drain"], False),
        (["python", "-m", "app", "check", "--config", "a.yaml"], False),
        (["python", "-m", "application"], False),
        (["python", "-m"], False),
        (["python", "app"], False),
        (["tini", "--", "python", "-m", "app"], False),
        (["/usr/bin/python3.11", "-m", "app"], True),
        ([], False),
    ],
)
def test_what_a_service_looks_like(command: Sequence[str], is_service: bool) -> None:
    assert serves(command) is is_service


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a service: the package that it runs is another `app`."""
    (tmp_path / "app.py").write_text("import time\ntime.sleep(60)\n")
    with subprocess.Popen([sys.executable, "-m", "app", "--a"], cwd=tmp_path) as process:
        yield process
        process.kill()


def test_one_that_is_named_is_told_and_waited_for(sleeper: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    # A zombie then, until its parent, which is this test, has waited for it.
    drain(sleeper.pid)
    assert time.monotonic() < began + 30
    assert sleeper.wait(5) == -signal.SIGTERM


def test_another_process_is_left_alone() -> None:
    with pytest.raises(NoService, match="is no service"):
        drain(os.getpid())


def test_there_has_to_be_one() -> None:
    with pytest.raises(NoService, match="no process"):
        drain(2**22 + 1)


def test_the_command_says_so() -> None:
    command = [sys.executable, "-m", "app", "drain", "--pid", str(2**22 + 1)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"tidegate: there is no process {2**22 + 1}\n"
