"""`python -m app drain`: tells the service in this container to drain, and waits for its end.

For a preStop hook. Kubernetes sends its own SIGTERM once the hook has returned, and a second
signal ends the service at once: so the hook does not return before there is nothing left to tell.
"""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

_EVERY_S = 0.1


class NoService(Exception):
    """There is no service to drain, or more than one."""


def drain(pid: int | None = None) -> None:
    """Drain the service and return when its process has ended.

    Args:
        pid: of its main process; None: the only service that this user runs here.

    Raises:
        NoService: there is none, or it is not clear which.

    """
    process = service() if pid is None else _process(pid)
    try:
        process.send_signal(signal.SIGTERM)
        while not _ended(process):
            time.sleep(_EVERY_S)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise NoService(f"process {process.pid} is another user's") from None


def service() -> psutil.Process:
    """The only service here.

    Raises:
        NoService: there is none, or more than one.

    """
    me = psutil.Process()
    found = [
        process
        for process in psutil.process_iter(["cmdline", "uids"])
        if process.info["uids"] == me.uids() and serves(process.info["cmdline"] or ())
    ]
    if not found:
        raise NoService("no service is running here")
    if len(found) > 1:
        pids = ", ".join(str(process.pid) for process in found)
        raise NoService(f"{len(found)} services are running here: say which with --pid ({pids})")
    return found[0]


def serves(command: Sequence[str]) -> bool:
    """Whether a command line is that of `python -m app`, without one of its commands.

    Not that of what started it: in a container that is `tini -- python -m app`.
    """
    if not command or not Path(command[0]).name.startswith("python"):
        return False
    try:
        rest = command[command.index("-m") + 1 :]
    except ValueError:
        return False
    return rest[:1] == ["app"] and (len(rest) == 1 or rest[1].startswith("-"))


def _process(pid: int) -> psutil.Process:
    try:
        process = psutil.Process(pid)
        command = process.cmdline()
    except psutil.NoSuchProcess:
        raise NoService(f"there is no process {pid}") from None
    if not serves(command):
        raise NoService(f"process {pid} is no service")
    return process


def _ended(process: psutil.Process) -> bool:
    """Whether it has ended, also when nobody has waited for it yet."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
