"""Servers that live as long as the runs against them."""

import importlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias

import httpx
import yaml

from loadtest import files
from loadtest.errors import UsageError

NAMED = Path(__file__).parent / "scenarios" / "servers.yaml"
"""Commands by name."""
LOOPBACK = "127.0.0.1"
READY_S = 300.0
STOPPING_S = 30.0


@dataclass(frozen=True)
class Url:
    """A server that runs already."""

    label: str


@dataclass(frozen=True)
class Serve:
    """A server to start: its name or command, and the command, with {port}, {model}, {python}."""

    label: str
    command: str


Source: TypeAlias = Url | Serve


@dataclass(frozen=True)
class Server:
    """One that answers; its process, if it was started here."""

    label: str
    base_url: str
    pid: int | None = None


def named() -> Mapping[str, str]:
    """The commands of `servers.yaml`."""
    found: dict[str, str] = yaml.safe_load(NAMED.read_text(encoding="utf-8"))
    return found


def find(text: str) -> Serve:
    """A server by the name of its command, or by the command itself.

    Raises:
        UsageError: neither.

    """
    commands = named()
    if text in commands:
        return Serve(text, commands[text])
    if "{port}" in text:
        return Serve(text, text)
    near = get_close_matches(text, commands, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    raise UsageError(
        f"--serve {text}: neither one of {', '.join(commands)} nor a command with {{port}}{hint}"
    )


@contextmanager
def reached(
    sources: Sequence[Source], model: Path | None, log_directory: Path, key: str | None = None
) -> Iterator[list[Server]]:
    """All of them, those that are commands started for as long as the context.

    Args:
        sources: in the order of the result.
        model: what `{model}` is; None: a tiny one that is made for the occasion.
        log_directory: where their output goes.
        key: what they want to be asked with.

    Raises:
        UsageError: one does not start.

    """
    with ExitStack() as held:
        if model is None and any("{model}" in s.command for s in sources if isinstance(s, Serve)):
            model = held.enter_context(_tiny_model())
        yield [
            held.enter_context(started(source, model, log_directory, key))
            if isinstance(source, Serve)
            else Server(source.label, source.label)
            for source in sources
        ]


@contextmanager
def started(
    serve: Serve, model: Path | None, log_directory: Path, key: str | None = None
) -> Iterator[Server]:
    """A server process in a session of its own, of which nothing is left in the end.

    Raises:
        UsageError: it ended, or did not answer in time; with the last line of its log.

    """
    port = _free_port()
    values = {"{port}": str(port), "{model}": str(model), "{python}": sys.executable}
    log = files.create(log_directory, "server", ".log")
    with log.open("wb") as output:
        process = _process(_words(serve.command, values), output.fileno())
    server = Server(serve.label, f"http://{LOOPBACK}:{port}", process.pid)
    try:
        _wait_ready(process, server, log, key)
        yield server
    finally:
        _end(process)


@contextmanager
def _tiny_model() -> Iterator[Path]:
    # Its libraries are the engine's; measuring a server that runs already takes none of them.
    tiny_model = importlib.import_module("loadtest.tiny_model")
    with tempfile.TemporaryDirectory(prefix="loadtest-") as scratch:
        yield tiny_model.build_model(Path(scratch))


def _words(command: str, values: Mapping[str, str]) -> list[str]:
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words


def _process(words: Sequence[str], output: int) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"{words[0]}: {error.strerror}") from None


def _wait_ready(
    process: "subprocess.Popen[bytes]", server: Server, log: Path, key: str | None
) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    deadline = time.monotonic() + READY_S
    with httpx.Client(headers=headers, timeout=5.0, trust_env=False) as client:
        while not _answers(client, server):
            if process.poll() is not None:
                state = f"ended with status {process.returncode}"
            elif time.monotonic() > deadline:
                state = f"did not answer within {READY_S:.0f} s"
            else:
                time.sleep(0.1)
                continue
            raise UsageError(f"the server {state}: {_last_line(log)} ({log})")


def _answers(client: httpx.Client, server: Server) -> bool:
    try:
        return client.get(f"{server.base_url}/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask it, then kill what is left of its group, whatever interrupts the waiting."""
    try:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOPPING_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
