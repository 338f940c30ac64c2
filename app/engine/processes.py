"""The engine's processes, as the operating system sees them."""

import contextlib
from collections.abc import Iterable

import psutil

_WAIT_S = 2.0


def engine_processes() -> list[psutil.Process]:
    """This process's descendants, without Python's own resource tracker."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if "resource_tracker" not in _command(process)
    ]


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes and wait until they are gone."""
    ending = list(processes)
    for process in ending:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ending, timeout=_WAIT_S)
