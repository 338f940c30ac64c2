"""One small request must not stop the others: bodies and connections that are made to."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app import server
from app.api import answer
from tests.rig.bodies import error_of
from tests.rig.scripted import OUTPUT, Scripted, scripted
from tests.rig.service import Service

MANY = 100_000
PATTERNS = {f"p{i}": {"type": "string", "pattern": "(a|b){0,500}"} for i in range(300)}
USER = {"role": "user", "content": "hi"}

BODIES: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/responses", {"input": [{}] * MANY}, 400),
    ("/v1/responses", {"input": [None] * MANY}, 400),
    ("/v1/chat/completions", {"messages": [{}] * MANY}, 400),
    ("/v1/chat/completions", {"messages": [USER], "tools": [{}] * MANY}, 400),
    ("/v1/completions", {"prompt": [{}] * MANY}, 400),
    ("/v1/completions", {"prompt": "x", "logit_bias": {str(i): "x" for i in range(MANY)}}, 400),
    ("/v1/messages", {"max_tokens": 1, "messages": [{}] * MANY}, 400),
    (
        "/v1/messages",
        {"max_tokens": 1, "messages": [{"role": "user", "content": [{}] * MANY}]},
        400,
    ),
    ("/tokenize", {"messages": [{}] * MANY}, 400),
    ("/v1/completions", {"prompt": "x", "model": " (parameter=a, value=" * MANY}, 404),
    (
        "/v1/chat/completions",
        {
            "messages": [USER],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "properties": PATTERNS}},
            },
        },
        400,
    ),
]


@pytest.mark.parametrize(("path", "body", "status"), BODIES, ids=lambda v: str(v)[:40])
async def test_a_hostile_body_stops_nobody(
    service: Service, path: str, body: dict[str, Any], status: int
) -> None:
    """The probe takes milliseconds; the bound is what a kubelet waits."""
    async with service.async_client() as client:
        attack = asyncio.create_task(client.post(path, json=body))
        slowest = 0.0
        while not attack.done():
            start = time.monotonic()
            assert (await client.get("/livez")).status_code == 200
            slowest = max(slowest, time.monotonic() - start)
        response = await attack
    assert response.status_code == status
    error_of(response, status, response.json()["error"]["code"])
    assert slowest < 1.0


@pytest.fixture(scope="module")
def quiet() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


def connect(service: Scripted) -> socket.socket:
    url = httpx.URL(service.url)
    return socket.create_connection((url.host, url.port or 0), timeout=20)


def everything(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def flood(connection: socket.socket) -> None:
    for _ in range(200):
        connection.sendall(b"y" * 65536)


def test_a_head_without_an_end_is_refused(quiet: Scripted) -> None:
    with connect(quiet) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ")
        with pytest.raises(OSError, match=r"reset|[Pp]ipe"):
            flood(connection)


def test_a_head_of_a_usual_size_is_taken(quiet: Scripted) -> None:
    headers = {f"x-{i}": "y" * 1000 for i in range(30)}
    with httpx.Client(base_url=quiet.url) as client:
        for _ in range(3):
            assert client.get("/livez", headers=headers).status_code == 200
        body = json.dumps({"messages": [], "pad": "x" * 500_000})
        answered = client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert answered.status_code == 200


@pytest.mark.parametrize("start", [b"", b"GET /livez HT"])
def test_a_head_that_does_not_come_is_not_waited_for(
    quiet: Scripted, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(server, "MAX_HEAD_S", 0.2)
    with connect(quiet) as connection:
        connection.sendall(start)
        assert everything(connection) == b""


def test_a_refusal_does_not_wait_for_the_rest_of_the_body(quiet: Scripted) -> None:
    with connect(quiet) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n"
            b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
        )
        received = everything(connection)
    assert received.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in received.lower()


def test_a_connection_is_kept_after_a_whole_body(quiet: Scripted) -> None:
    with httpx.Client(base_url=quiet.url) as client:
        refused = client.post("/v1/chat/completions", json=[1])
        assert refused.headers.get("connection") != "close"


def test_what_nobody_foresaw_is_a_500_with_an_id(
    quiet: Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> dict[str, Any]:
        raise KeyError("secret")

    monkeypatch.setattr(quiet.engine, "models", fail)
    with caplog.at_level(logging.INFO):
        response = httpx.get(f"{quiet.url}/v1/models", headers={"x-request-id": "mine"})
        # A line is written after its answer; by the end of this, that of the above is there.
        httpx.get(f"{quiet.url}/nowhere")
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "mine"
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    # Another test's may come late.
    lines = [r.__dict__["fields"] for r in caplog.records if r.name == "tidegate.request"]
    assert [line["status"] for line in lines if line["id"] == "mine"] == [500]
    assert any(r.exc_info and r.__dict__["fields"]["id"] == "mine" for r in caplog.records)


def status_of(record: logging.LogRecord) -> int | None:
    """The status in a request's line; None for other lines."""
    if record.name != "tidegate.request":
        return None
    status: int = record.__dict__["fields"]["status"]
    return status


def test_a_client_that_does_not_read_is_let_go(
    quiet: Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(answer, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(quiet.engine, "script", [OUTPUT, *["data: " + "x" * 65536 + "\n\n"] * 500])
    body = b'{"messages": [], "stream": true}'
    with caplog.at_level(logging.INFO), connect(quiet) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        deadline = time.monotonic() + 20
        while 499 not in [status_of(record) for record in caplog.records]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
