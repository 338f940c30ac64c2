"""A server process on a loopback port: started, watched, read and surely ended."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from tests.rig import samples
from tests.rig.samples import Samples

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
LIFETIME_S = 7200
"""No server outlives this, or the test run that started it."""
PATIENCE = httpx.Timeout(120.0, connect=10.0, pool=None)
UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=None)

_HIDDEN = ("TIDEGATE_", "VLLM_", "OTEL_", "PROMETHEUS_MULTIPROC_DIR", "OMP_NUM_THREADS")
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONUNBUFFERED": "1",
    # Threads of several engines on two cores wait for each other and burn the time of both.
    "OMP_NUM_THREADS": "1",
}
REAPER = """
while [ "$3" -gt "$((n += 1))" ] && kill -0 "$1"; do
  sleep 1
  kill -0 "-$2" || exit 0
done 2>/dev/null
kill -KILL "-$2"
"""


class ServerError(AssertionError):
    """A server ended, or did not become ready in time; the message has the end of its log."""


class Server:
    """A process group in a session of its own, of which nothing is left after `close`."""

    ready_path = "/readyz"

    def __init__(
        self, command: Sequence[str], port: int, log: Path, env: Mapping[str, str]
    ) -> None:
        self.command = command
        self.url = f"http://{LOOPBACK}:{port}"
        self.ready_url = self.url + self.ready_path
        self.log = log
        self.max_model_len = 0
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()
        # A new connection each time: one that was kept could die with what is being tested.
        fresh = httpx.Limits(max_keepalive_connections=0)
        probe = httpx.Client(timeout=PATIENCE, limits=fresh, trust_env=False)
        self._probe = self._held.enter_context(probe)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- the process

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("not started")
        return self._process

    def start(self) -> None:
        """Starts the process and returns; see `wait_ready`."""
        scratch = tempfile.TemporaryDirectory(prefix="rig-", ignore_cleanup_errors=True)
        environment = clean_environment() | {"TMPDIR": self._held.enter_context(scratch)}
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=environment | self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._held.callback(self._kill)
        self._start_reaper(self._process.pid)

    def wait_ready(self, within: float = 180.0) -> None:
        """Returns when the readiness probe answers 200. Raises ServerError."""
        deadline = time.monotonic() + within
        while not self.is_ready():
            if self.process.poll() is not None:
                raise ServerError(f"exit code {self.process.returncode}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"not ready after {within:.0f} s\n{self.log_tail()}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        try:
            return self._probe.get(self.ready_url, timeout=2.0).status_code == 200
        except httpx.TransportError:
            return False

    def terminate(self, within: float = 60.0) -> int:
        """SIGTERM to the main process alone, as Kubernetes does; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(within)

    def signal_group(self, number: signal.Signals) -> None:
        """To every process of the group at once, as Ctrl-C and systemd do."""
        os.killpg(self.process.pid, number)

    def wait(self, within: float = 60.0) -> int:
        """Returns the exit code of the main process. Raises ServerError."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise ServerError(f"alive after {within:.0f} s\n{self.log_tail()}") from None

    def survivors(self) -> list[psutil.Process]:
        """Every living process of the server's session, the main one included."""
        session = self.process.pid
        return [p for p in psutil.process_iter() if _session(p.pid) == session and _lives(p)]

    def left_after(self, within: float) -> list[psutil.Process]:
        """The survivors when that time is over, or as soon as there are none."""
        deadline = time.monotonic() + within
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def engine_pids(self, kind: str = "EngineCore") -> list[int]:
        """By vLLM's process titles; other kinds: `Worker`, `DPCoordinator`, or `` for all."""
        return [p.pid for p in self.survivors() if _title(p).startswith(f"VLLM::{kind}")]

    @contextmanager
    def engine_stopped(self) -> Iterator[None]:
        """The engine's processes do not run meanwhile, as when a driver hangs."""
        processes = self.engine_pids("")
        assert processes
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Kills whatever is left of the server, engine processes included."""
        self._held.close()

    def _kill(self) -> None:
        deadline = time.monotonic() + 10.0
        while (left := self.survivors()) and time.monotonic() < deadline:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)
        self.process.wait(10)

    def _start_reaper(self, group: int) -> None:
        arguments = ["reaper", str(os.getpid()), str(group), str(LIFETIME_S)]
        reaper = subprocess.Popen(["/bin/sh", "-c", REAPER, *arguments], start_new_session=True)
        self._held.enter_context(reaper)
        self._held.callback(reaper.kill)

    # -- its clients

    def client(self) -> httpx.Client:
        """Closed with the server, as are the other synchronous ones."""
        client = httpx.Client(
            base_url=self.url, timeout=PATIENCE, limits=UNLIMITED, trust_env=False
        )
        return self._held.enter_context(client)

    def async_client(self) -> httpx.AsyncClient:
        """To be closed by the caller: `async with`."""
        return httpx.AsyncClient(
            base_url=self.url, timeout=PATIENCE, limits=UNLIMITED, trust_env=False
        )

    def openai(self, api_key: str = "none") -> OpenAI:
        """Without retries, so that a test sees every refusal."""
        client = OpenAI(
            base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=PATIENCE.read
        )
        return self._held.enter_context(client)

    def async_openai(self, api_key: str = "none") -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=PATIENCE.read
        )

    def anthropic(self, api_key: str = "none") -> Anthropic:
        client = Anthropic(base_url=self.url, api_key=api_key, max_retries=0, timeout=PATIENCE.read)
        return self._held.enter_context(client)

    # -- what it tells

    def metrics(self) -> Samples:
        """One scrape, by name and labels."""
        response = self._probe.get(f"{self.ops_url}/metrics")
        return samples.parsed(response.raise_for_status().text)

    @property
    def ops_url(self) -> str:
        return self.ready_url.removesuffix(self.ready_path)

    def metric(self, name: str, **labels: str) -> float:
        """`samples.total` of one scrape."""
        return samples.total(self.metrics(), name, **labels)

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def log_tail(self, characters: int = 6000) -> str:
        return self.log_text()[-characters:]

    def log_lines(self) -> list[dict[str, Any]]:
        """The lines of the log that are JSON objects, in order."""
        parsed = (_json_object(line) for line in self.log_text().splitlines())
        return [line for line in parsed if line is not None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """Ours, without what would change the service, and without a way to the model hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    return kept | _OFFLINE


def _json_object(line: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict):
            return value
    return None


def _session(pid: int) -> int | None:
    with suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return None


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return (process.cmdline() or [process.name()])[0]
    return ""
