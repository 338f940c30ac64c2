"""Hands the reason of a failed start up from the engine's processes.

They die with it: what vllm raises in the service only says that they did. While the engine
starts, a file is there for the first reason that one of them logs.
"""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What vllm logs, with the exception, in each process whose start fails; the innermost one first.
_SAYS = "failed to start"


class StartFailed(RuntimeError):
    """The engine did not start; the message is the reason, as its process had it."""


def in_a_line(error: BaseException | None) -> str:
    """What to tell of an error: its type and text, or the reason that it hands on."""
    said = str(error) if isinstance(error, StartFailed) else f"{type(error).__name__}: {error}"
    return " ".join(said.split())


@contextmanager
def first_reason(file: Path) -> Iterator[None]:
    """Keep the reasons of failures inside; what is raised then is the first of them.

    Raises:
        StartFailed: a process said why.

    """
    file.touch()
    try:
        yield
    except Exception as error:
        reason = file.read_text(encoding="utf-8") or _silent_death(error)
        if reason is not None:
            raise StartFailed(reason) from error
        raise
    finally:
        file.unlink(missing_ok=True)


def _silent_death(error: Exception) -> str | None:
    """What to say of processes that ended without a word; None when it was something else."""
    codes = re.search(r"Failed core proc\(s\): {(.+)}", str(error))
    if codes is None:
        return None
    return (
        f"a process of the engine ended without a word (exit codes: {codes[1]}); -9 is a kill, "
        "most often by the kernel when memory is short"
    )


class StartFailures(logging.Filter):
    """Of a handler in each of the engine's processes: notes why it did not start.

    The record itself, which is mostly traceback, is for those who asked for debug lines.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = Path(file)

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info or _SAYS not in record.getMessage() or not self.file.exists():
            return True
        if self.file.stat().st_size == 0:
            self.file.write_text(in_a_line(record.exc_info[1]), encoding="utf-8")
        if isinstance(sys.stderr, Stderr):
            sys.stderr.told = True
        return _debugging()


class Stderr:
    """Stderr without what `multiprocessing` writes of an exception that was `told` already."""

    def __init__(self, stream: Any) -> None:
        self.told = False
        self._stream = stream
        self._silent = False

    def write(self, text: str) -> int:
        if text.startswith("Process ") and text.endswith(":\n"):
            self._silent = self.told and not _debugging()
        written: int = len(text) if self._silent else self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _debugging() -> bool:
    return logging.getLogger("app").isEnabledFor(logging.DEBUG)
