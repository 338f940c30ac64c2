"""The rig itself: the tiny model's properties, and that no process outlives its server."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadtest.tiny_model import build_model, train_tokenizer
from tests.conftest import StartService
from tests.rig.models import build_lora
from tests.rig.peer import Peer
from tests.rig.server import REAPER, free_port
from tests.rig.service import (
    Server,
    ServerError,
    Service,
    hold,
    shown,
    total,
    until,
    until_metrics,
)

TOKENIZER = train_tokenizer()
SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"


@given(st.text())
@example("👩‍💻🇩🇪 \x00\u200b  a\n\n\tn't")
@example("a <s> b</s><think>")
@settings(deadline=None)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_builds_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def content(directory: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in directory.iterdir()}

    models = [content(build_model(tmp_path / f"m{i}", seed)) for i, seed in enumerate((0, 0, 1))]
    adapters = [content(build_lora(tmp_path / f"l{i}", seed)) for i, seed in enumerate((1, 1, 2))]
    for same, again, other in (models, adapters):
        assert same == again
        assert same != other


def test_a_server_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('the reason')"]
    with pytest.raises(ServerError, match="exit code 1\nthe reason"):
        Server(command, free_port(), tmp_path / "log", {}).__enter__()


def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    server = Server([sys.executable, "-c", PARENT], free_port(), tmp_path / "log", {})
    server.start()
    deadline = time.monotonic() + 20
    while len(server.survivors()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ServerError, match="not ready"):
        server.wait_ready(within=0.2)
    assert len(server.survivors()) == 2
    server.close()
    assert server.survivors() == []


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDEGATE_ENGINE__MODEL", "VLLM_PORT", "PROMETHEUS_MULTIPROC_DIR"):
        monkeypatch.setenv(name, "from outside")
    command = [sys.executable, "-c", "import os; print(os.environ)"]
    server = Server(command, free_port(), tmp_path / "log", {"TIDEGATE_SERVER__PORT": "1"})
    server.start()
    assert server.wait() == 0
    assert "from outside" not in server.log_text()
    assert "'TIDEGATE_SERVER__PORT': '1'" in server.log_text()
    server.close()


@pytest.mark.parametrize(
    ("parent", "seconds"), [(os.getpid(), "2"), (2**22 + 1, "60")], ids=["late", "orphaned"]
)
def test_the_reaper_ends_what_is_left(parent: int, seconds: str) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True) as group:
        command = ["/bin/sh", "-c", REAPER, "reaper", str(parent), str(group.pid), seconds]
        assert subprocess.run(command, timeout=20, check=False).returncode == 0
        assert group.wait(10) == -signal.SIGKILL


def test_the_reaper_ends_itself_with_the_group() -> None:
    with subprocess.Popen(["/bin/true"], start_new_session=True) as group:
        group.wait(10)
    command = ["/bin/sh", "-c", REAPER, "reaper", str(os.getpid()), str(group.pid), "60"]
    assert subprocess.run(command, timeout=20, check=False).returncode == 0


def complete(server: Server, **body: object) -> Any:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 60, "temperature": 0} | body
    response = server.client().post("/v1/completions", json=body)
    return response.raise_for_status().json()["choices"][0]


def test_the_model_writes_varied_text_that_depends_on_the_prompt(peer: Peer) -> None:
    first = complete(peer, return_token_ids=True)
    assert len(set(first["token_ids"])) > 20
    assert first["finish_reason"] == "length"
    assert complete(peer)["text"] == first["text"]
    assert complete(peer, prompt="Hallo")["text"] != first["text"]


def test_the_adapter_writes_another_text(peer: Peer) -> None:
    assert complete(peer, model="tiny-lora")["text"] != complete(peer)["text"]


USER = [{"role": "user", "content": "How old are you?"}]
AGE = {"type": "object", "properties": {"age": {"enum": [7, 42]}}, "required": ["age"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE, "strict": True}}
TOOL = {"type": "function", "function": {"name": "tell", "parameters": AGE}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 40}),
        ("/v1/chat/completions", {"messages": USER, "response_format": SCHEMA, "max_tokens": 40}),
        ("/v1/chat/completions", {"messages": USER, "tools": [TOOL], "tool_choice": "required"}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 40}),
        ("/v1/messages", {"messages": USER, "max_tokens": 40}),
    ],
)
def test_the_model_serves_every_route(peer: Peer, path: str, body: dict[str, object]) -> None:
    response = peer.client().post(path, json={"model": "tiny", **body})
    assert response.status_code == 200, response.text


async def test_held_streams_run_until_they_are_closed(peer: Peer) -> None:
    async with hold(peer, 6, started=4, prompt="the same") as held:
        assert sum(stream.started for stream in held) >= 4
        held.close()
    samples = await until_metrics(peer, lambda s: total(s, "vllm:num_requests_running") == 0)
    assert "vllm:num_requests_running" not in shown(samples)
    assert peer.metric("vllm:num_requests_waiting", model_name="tiny") == 0


async def test_held_streams_can_be_finished(peer: Peer) -> None:
    async with hold(peer, 2, max_tokens=20) as held:
        await held.finish()
    assert [(stream.status, stream.complete) for stream in held] == [(200, True)] * 2
    assert held[0].events()[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_stream_that_ends_too_early_fails_the_test(peer: Peer) -> None:
    with pytest.raises(AssertionError, match=r"held streams have ended: .*200 "):
        async with hold(peer, 1, max_tokens=2) as held:
            await asyncio.gather(*held.tasks)


async def test_a_condition_that_never_holds_is_given_up(peer: Peer) -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.1 s for a miracle"):
        await until(lambda: False, within=0.1, why="for a miracle")
    with pytest.raises(AssertionError, match=r"the last scrape:\n.*vllm:"):
        await until_metrics(peer, lambda _: False, within=0.1)
    with pytest.raises(KeyError, match="no_such_series"):
        peer.metric("no_such_series")


def test_the_engine_is_found_by_its_title(peer: Peer) -> None:
    (engine,) = peer.engine_pids()
    assert psutil.Process(engine).ppid() == peer.process.pid


def test_the_shared_service_answers_every_client(service: Service) -> None:
    user: Any = [{"role": "user", "content": "Hello"}]
    chat = service.openai().chat.completions.create(model="tiny", messages=user, max_tokens=3)
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 3
    message = service.anthropic().messages.create(model="tiny", messages=user, max_tokens=3)
    assert message.usage.output_tokens == 3
    assert service.metric("vllm_running_requests", model_name="tiny") == 0
    assert any(line["message"] == "ready" for line in service.log_lines())


def test_a_started_service_has_its_own_settings_and_leaves_nothing(
    start_service: StartService,
) -> None:
    service = start_service(engine__max_num_seqs=2, env={"TIDEGATE_LOGGING__LEVEL": "debug"})
    assert len(service.engine_pids()) == 1
    assert service.terminate() == 0
    assert service.left_after(10.0) == []


def test_a_refused_setting_is_seen_in_the_log(start_service: StartService) -> None:
    service = start_service(wait=False, server__prot=1)
    assert service.wait() != 0
    assert "server.port" in service.log_text()
