"""The reason of a failed start, on its way from an engine's process to the service."""

import io
import logging
import sys
from pathlib import Path

import pytest

from app.engine.failures import StartFailed, StartFailures, Stderr, first_reason
from tests.rig.logs import loggers_kept


def failing(message: str, error: Exception | None) -> logging.LogRecord:
    info = (type(error), error, None) if error else None
    return logging.LogRecord("vllm.x", logging.ERROR, "x.py", 1, message, None, info)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "start-failure"


def test_the_first_reason_is_what_is_raised(file: Path) -> None:
    said = StartFailures(str(file))

    def start() -> None:
        assert not said.filter(failing("Worker failed to start.", ValueError("too\n small")))
        assert not said.filter(failing("Engine failed to start.", RuntimeError("see above")))
        raise RuntimeError("see above")

    with pytest.raises(StartFailed) as raised, first_reason(file):
        start()
    assert str(raised.value) == "ValueError: too small"
    assert not file.exists()


def test_without_a_reason_the_error_is_its_own(file: Path) -> None:
    with pytest.raises(OSError, match="no such model"), first_reason(file):
        raise OSError("no such model")
    with pytest.raises(StartFailed, match="'EngineCore_DP0': -9"), first_reason(file):
        raise RuntimeError("See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}")


def test_other_records_and_later_ones_are_logged(file: Path) -> None:
    said = StartFailures(str(file))
    with first_reason(file):
        assert said.filter(failing("something else", ValueError("x")))
        assert said.filter(failing("failed to start", None))
    assert said.filter(failing("failed to start", ValueError("x")))


def test_the_traceback_is_for_level_debug(file: Path) -> None:
    with loggers_kept():
        logging.getLogger("app").setLevel(logging.DEBUG)
        file.touch()
        assert StartFailures(str(file)).filter(failing("failed to start", ValueError("x")))


def test_stderr_leaves_out_only_what_was_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    stderr = Stderr(written)
    monkeypatch.setattr(sys, "stderr", stderr)
    stderr.write("Process one:\n")
    stderr.write("Traceback of one\n")
    file.touch()
    StartFailures(str(file)).filter(failing("failed to start", ValueError("x")))
    stderr.write("a warning\n")
    stderr.write("Process two:\n")
    stderr.write("Traceback of two\n")
    assert written.getvalue() == "Process one:\nTraceback of one\na warning\n"
    assert stderr.isatty() is False
