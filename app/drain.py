"""`python -m app drain`: tells the service in this container to drain, and waits for its end.

For a preStop hook. Kubernetes sends its own SIGTERM once the hook has returned, and a second
signal ends the service at once: so the hook does not return before there is nothing left to tell.
"""

import signal
from collections.abc import Sequence

import psutil


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
    process.send_signal(signal.SIGTERM)
    process.wait()


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
    """Whether a command line is that of `python -m app`, without one of its commands."""
    try:
        rest = command[command.index("-m") + 1 :]
    except ValueError:
        return False
    return rest[:1] == ["app"] and (len(rest) == 1 or rest[1].startswith("-"))


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        raise NoService(f"there is no process {pid}") from None
