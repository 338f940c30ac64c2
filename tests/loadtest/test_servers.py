"""Servers that are started for a run: they answer, or say why not, and nothing of them is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from loadtest import servers
from loadtest.errors import UsageError
from loadtest.servers import Serve, Source, Url
from tests.rig.server import ROOT

# A helper process in its group, then one of: answer, fail, or say nothing.
SCRIPT = """
import signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

port, how, *more = sys.argv[1:]
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("helper", helper.pid, *more, flush=True)
if how == "fail":
    print("a traceback\\nValueError: no such\\tmodel\\n\\n", flush=True)
    sys.exit(3)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = how != "locked" or self.headers["Authorization"] == "Bearer sesame"
        self.send_response(200 if allowed and self.path == "/v1/models" else 404)
        self.end_headers()

if how == "silent":
    time.sleep(600)
HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "a server.py"
    path.write_text(SCRIPT)
    return path


def serve(script: Path, how: str, more: str = "") -> Serve:
    return Serve("fake", f"env A=1 {{python}} '{script}' {{port}} {how} {more}")


def said(directory: Path) -> list[str]:
    """By the server in its first line."""
    (log,) = directory.glob("*.log")
    return log.read_text().splitlines()[0].split(maxsplit=2)


def helper(directory: Path) -> int:
    """The process that the server has started."""
    return int(said(directory)[1])


def is_gone(pid: int, within: float = 5.0) -> bool:
    """Ended; one that nobody has waited for yet counts as such."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_server_answers_as_long_as_the_context(script: Path, tmp_path: Path) -> None:
    logs = tmp_path / "results"
    with servers.started(serve(script, "answer"), None, logs) as server:
        assert httpx.get(f"{server.base_url}/v1/models", trust_env=False).status_code == 200
        assert server.label == "fake"
        assert not is_gone(helper(logs), within=0.1)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.base_url}/v1/models", trust_env=False)
    assert is_gone(helper(logs))


def test_nothing_is_left_when_the_run_ends_badly(script: Path, tmp_path: Path) -> None:
    logs = tmp_path / "results"
    with (
        pytest.raises(KeyboardInterrupt),
        servers.started(serve(script, "answer"), None, logs),
    ):
        raise KeyboardInterrupt
    assert is_gone(helper(logs))


def test_a_server_that_will_not_end_is_killed(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "STOPPING_S", 0.2)
    logs = tmp_path / "results"
    with servers.started(serve(script, "stubborn"), None, logs) as server:
        pass
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.base_url}/v1/models", trust_env=False)
    assert is_gone(helper(logs))


def test_a_server_that_fails_says_so_with_its_last_line(script: Path, tmp_path: Path) -> None:
    logs = tmp_path / "results"
    with (
        pytest.raises(UsageError, match=r"ended with status 3: ValueError: no such\tmodel \("),
        servers.started(serve(script, "fail"), None, logs),
    ):
        pytest.fail("it has not started")
    assert is_gone(helper(logs))


def test_a_server_that_says_nothing_is_given_up(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "READY_S", 1.0)
    logs = tmp_path / "results"
    with (
        pytest.raises(UsageError, match="did not answer within 1 s"),
        servers.started(serve(script, "silent"), None, logs),
    ):
        pytest.fail("it has not started")
    assert is_gone(helper(logs))


def test_a_command_that_is_none(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="no-such-command: No such file"),
        servers.started(Serve("x", "no-such-command {port}"), None, tmp_path),
    ):
        pytest.fail("it has not started")


def test_a_server_is_asked_with_its_key(script: Path, tmp_path: Path) -> None:
    with servers.started(serve(script, "locked"), None, tmp_path, key="sesame") as server:
        assert httpx.get(f"{server.base_url}/v1/models", trust_env=False).status_code == 404


def test_several_at_once_in_their_order(script: Path, tmp_path: Path) -> None:
    sources: list[Source] = [
        serve(script, "answer"),
        Url("http://127.0.0.1:9/v1"),
        serve(script, "answer"),
    ]
    logs = tmp_path / "results"
    with servers.reached(sources, None, logs) as reached:
        assert [server.label for server in reached] == ["fake", "http://127.0.0.1:9/v1", "fake"]
        assert reached[1].base_url == "http://127.0.0.1:9/v1"
        assert reached[0].base_url != reached[2].base_url
        assert len(list(logs.glob("*.log"))) == 2


def test_the_model_is_the_one_that_is_given(script: Path, tmp_path: Path) -> None:
    model = tmp_path / "a model"
    logs = tmp_path / "results"
    with servers.reached([serve(script, "answer", "{model}")], model, logs):
        assert said(logs)[2] == str(model)


def test_a_tiny_model_is_made_where_none_is_given(script: Path, tmp_path: Path) -> None:
    logs = tmp_path / "results"
    with servers.reached([serve(script, "answer", "{model}")], None, logs):
        model = Path(said(logs)[2])
        assert (model / "config.json").is_file()
    assert not model.exists()


def test_a_server_is_found_by_name_or_is_a_command() -> None:
    assert servers.find("vllm").command == servers.named()["vllm"]
    assert servers.find("serve --port {port}") == Serve(*["serve --port {port}"] * 2)
    with pytest.raises(UsageError, match="did you mean vllm"):
        servers.find("vlm")
    with pytest.raises(UsageError, match="nor a command with "):
        servers.find("serve --port 8000")


@pytest.mark.parametrize("name", ["vllm", "tidegate"])
def test_the_named_commands_differ_only_in_their_front(name: str) -> None:
    command = servers.named()[name]
    assert all(place in command for place in ("{python}", "{port}", "{model}"))
    words = command.replace("=", " ").replace("_", "-").split()
    for option, value in (
        ("max-num-seqs", "16"),
        ("max-num-batched-tokens", "2048"),
        ("max-model-len", "16384"),
        ("dtype", "float32"),
        ("kv-cache-memory-bytes", str(256 << 20)),
    ):
        (at,) = (i for i, word in enumerate(words) if word.endswith(option))
        assert words[at + 1] == value


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_harness_that_is_ended_ends_its_server(
    script: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = [
        *(
            "env",
            "--default-signal=INT",
            sys.executable,
            "-m",
            "loadtest",
            "run",
            "--serve",
            serve(script, "silent").command,
        ),
        *("--out", str(tmp_path / "results")),
    ]
    harness = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not [log for log in tmp_path.glob("results/*.log") if "helper" in log.read_text()]:
            assert time.monotonic() < deadline
            assert harness.poll() is None
            time.sleep(0.05)
        server = psutil.Process(helper(tmp_path / "results")).ppid()
        os.kill(harness.pid, number)
        _, errors = harness.communicate(timeout=60)
    finally:
        harness.kill()
        harness.wait()
    assert harness.returncode == 130
    assert not errors
    assert is_gone(helper(tmp_path / "results"))
    assert is_gone(server)
