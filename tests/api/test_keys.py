"""Keys as clients meet them, over real sockets; the engine is scripted."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest
from starlette.requests import Request

from app.auth.keys import hash_of
from app.auth.limits import LIMIT_HEADERS
from app.engine.protocol import Call, Channel, Document, Operation, Stream
from app.permit import Claim, current_permit
from tests.rig.keys import Mounted
from tests.rig.samples import parsed, total
from tests.rig.scripted import OUTPUT, Scripted, ScriptedEngine, scripted

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
PATIENCE_S = 10.0


class PlayedEngine(ScriptedEngine):
    """Does what a request's body says: `use` tokens, wait until `release` is set, stream."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[Claim] = []
        self.release = threading.Event()

    def parse(self, operation: Operation, body: bytes) -> Call:
        call = super().parse(operation, body)
        request = call.request
        return replace(
            call,
            sequences=0 if operation is Operation.TOKENIZE else request.get("n", 1),
            estimate=request.get("estimate", 1),
            max_tokens=request.get("max_tokens"),
            priority=request.get("priority"),
        )

    async def run(
        self, call: Call, request: Request, channel: Channel | None = None
    ) -> Document | Stream:
        permit = current_permit.get()
        assert permit is not None
        self.claims.append(permit.claim)
        permit.output_tokens += call.request.get("use", 0)
        if call.request.get("hold"):
            await asyncio.to_thread(self.release.wait, 30)
        if call.request.get("stream"):
            return Stream(self._play([OUTPUT, "data: {}\n\n", "data: [DONE]\n\n"]))
        permit.output()
        return Document(json.dumps(ANSWERS[call.operation]).encode())


ANSWERS: Mapping[Operation, Any] = {
    Operation.CHAT: {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [],
    },
    Operation.MESSAGES: {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "scripted",
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    **{
        operation: {}
        for operation in Operation
        if operation not in (Operation.CHAT, Operation.MESSAGES)
    },
}


def secret(name: str) -> str:
    return f"tg-the-secret-of-{name}"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret(name)}"}


def listing(**limits: Mapping[str, Any]) -> str:
    """A keys file; JSON is YAML."""
    keys = [{"name": n, "sha256": hash_of(secret(n)), **more} for n, more in limits.items()]
    return json.dumps({"keys": keys})


KEYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "few": {"requests_per_minute": 2},
    "once": {"requests_per_minute": 1},
    "patient": {"requests_per_minute": 1000, "tokens_per_minute": 6000},
    "streamer": {"requests_per_minute": 60, "tokens_per_minute": 600},
    "debtor": {"tokens_per_minute": 100},
    "narrow": {"max_concurrent": 2},
    "turned_away": {"requests_per_minute": 10, "tokens_per_minute": 100},
    "urgent": {"priority": -5},
    "low": {"priority": 7},
    "one_model": {"models": ["org/with-slash"]},
}


@contextmanager
def keyed(directory: Path, *settings: str) -> Iterator[Scripted]:
    path = directory / "keys.yaml"
    path.write_text(listing(**KEYS))
    engine = PlayedEngine()
    try:
        with scripted(f"--auth.keys_file={path}", *settings, engine=engine) as running:
            yield running
    finally:
        engine.release.set()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """With a port for probes and metrics, browsers' origins, and no queue."""
    with keyed(
        tmp_path_factory.mktemp("keys"),
        "--server.ops_port=0",
        '--server.cors_origins=["https://a.example"]',
        "--admission.max_pending=0",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def one_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    with keyed(
        tmp_path_factory.mktemp("keys"), "--metrics.require_key=true", "--server.root_path=/llm"
    ) as running:
        yield running


@pytest.fixture
def engine(service: Scripted) -> Iterator[PlayedEngine]:
    assert isinstance(service.engine, PlayedEngine)
    service.engine.claims.clear()
    service.engine.release.clear()
    yield service.engine
    service.engine.release.set()


def ask(service: Scripted, name: str, path: str = CHAT, **body: Any) -> httpx.Response:
    return httpx.post(service.url + path, json=body, headers=bearer(name), timeout=30)


def refused(response: httpx.Response, path: str = CHAT) -> dict[str, Any]:
    assert response.status_code == 401, response.text
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == ({"type", "error"} if path.startswith(MESSAGES) else {"error"})
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"
    return error


def raw(service: Scripted, request: str) -> tuple[int, str, bytes]:
    """Status, head and body of the answer to bytes that no client would send, or not all of."""
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as wire:
        wire.sendall(request.encode())
        answer = b""
        while chunk := wire.recv(65536):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body


# -- what needs a key


ROUTES = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", MESSAGES),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/scripted"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/"),
    ("GET", "/nowhere"),
    ("DELETE", CHAT),
    ("OPTIONS", CHAT),
    ("POST", "/v1/models"),
    ("GET", "/livez/"),
    ("GET", "/Livez"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_everything_else_needs_a_key(service: Scripted, method: str, path: str) -> None:
    error = refused(httpx.request(method, service.url + path), path)
    assert "Authorization" in error["message"]
    wrong = httpx.request(method, service.url + path, headers=bearer("nobody"))
    assert refused(wrong, path)["message"] == "The API key is not valid."
    allowed = httpx.request(method, service.url + path, headers=bearer("plain"))
    assert allowed.status_code != 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_probes_need_none(service: Scripted, one_port: Scripted, path: str) -> None:
    for headers in ({}, bearer("nobody")):
        assert httpx.get(service.ops_url + path, headers=headers).status_code == 200
        # They have moved to the other port: unknown here, not forbidden.
        assert httpx.get(service.url + path, headers=headers).status_code == 404
        assert httpx.get(one_port.url + path, headers=headers).status_code == 200
        assert httpx.get(f"{one_port.url}/llm{path}", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "/livez/../v1/models",
        "/v1/models/../../livez",
        "//livez",
        "/livez//",
        "/livez;/v1/models",
        "/livez%00",
        "/%2e%2e/livez",
        "/v1/models?/livez",
        "/v1/models#/livez",
        "/llm/v1/models",
        "/llm/llm/livez",
        "/llmlivez",
        "*",
    ],
)
def test_no_way_of_writing_a_path_opens_it(one_port: Scripted, target: str) -> None:
    status, _, body = raw(
        one_port, f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    assert status in (400, 401), body


@pytest.mark.parametrize("settings", [["--server.ops_port=0"], ["--metrics.require_key=true"]])
def test_metrics_are_open_only_on_a_port_of_their_own(tmp_path: Path, settings: list[str]) -> None:
    with keyed(tmp_path, *settings) as running:
        anybody = httpx.get(f"{running.url}/metrics")
        refused(anybody)
        known = httpx.get(f"{running.url}/metrics", headers=bearer("plain"))
        apart = running.ops_url != running.url
        assert known.status_code == (404 if apart else 200)
        assert httpx.get(f"{running.ops_url}/metrics").status_code == (200 if apart else 401)


def test_without_a_file_there_are_no_keys() -> None:
    with scripted() as running:
        for headers in ({}, bearer("anybody")):
            answer = httpx.post(running.url + CHAT, json={}, headers=headers)
            assert answer.status_code == 200
            assert not set(LIMIT_HEADERS) & set(answer.headers)


# -- how a key is given


PLAIN = secret("plain")


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", f"Bearer {PLAIN}")],
        [("authorization", f"bearer   {PLAIN}")],
        [("Authorization", f"BEARER {PLAIN}")],
        [("X-Api-Key", PLAIN)],
        [("X-Api-Key", PLAIN), ("Authorization", f"Bearer {PLAIN}")],
        [("X-Api-Key", PLAIN), ("Authorization", "Basic YTpi")],
        [("X-Api-Key", ""), ("Authorization", f"Bearer {PLAIN}")],
    ],
)
def test_ways_to_give_a_key(service: Scripted, headers: list[tuple[str, str]]) -> None:
    assert httpx.post(service.url + CHAT, json={}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", PLAIN)],
        [("Authorization", f"Basic {PLAIN}")],
        [("Authorization", f"Bearer{PLAIN}")],
        [("Authorization", f"Token Bearer {PLAIN}")],
        [("Authorization", "Bearer")],
        [("Authorization", f"Bearer {PLAIN[:-1]}")],
        [("Authorization", f"Bearer {PLAIN}x")],
        [("Authorization", f"Bearer {PLAIN} {PLAIN}")],
        [("Authorization", f"Bearer {PLAIN.upper()}")],
        [("Authorization", f"Bearer {hash_of(PLAIN)}")],
        [("Authorization", "Bearer plain")],
        [("X-Api-Key", "")],
        [("X-Api-Key", f"Bearer {PLAIN}")],
        [("X-Api-Key", "\u00fc")],
        [("X-Api-Key", "x" * 10_000)],
        [("X-Api-Key", PLAIN), ("Authorization", f"Bearer {secret('few')}")],
        [("X-Api-Key", PLAIN), ("X-Api-Key", "other")],
        [("Api-Key", PLAIN)],
        [("Cookie", f"key={PLAIN}")],
    ],
)
def test_what_is_no_key(service: Scripted, headers: list[tuple[str, str]]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    error = refused(httpx.post(service.url + CHAT, json={}, headers=encoded))
    assert PLAIN not in error["message"]


def test_a_key_in_the_query_is_none(service: Scripted) -> None:
    refused(httpx.get(f"{service.url}/v1/models", params={"api_key": PLAIN, "key": PLAIN}))


@pytest.mark.parametrize("more", ["content-length: 1000000", "transfer-encoding: chunked"])
@pytest.mark.parametrize("expect", ["", "expect: 100-continue\r\n"])
def test_a_refusal_needs_no_upload(service: Scripted, more: str, expect: str) -> None:
    start = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    status, head, body = raw(service, f"{start}{expect}{more}\r\n\r\n")
    assert status == 401
    assert "connection: close" in head
    assert json.loads(body)["error"]["code"] == "invalid_api_key"


def test_a_refusal_without_a_body_keeps_the_connection(service: Scripted) -> None:
    with httpx.Client() as client:
        for _ in range(2):
            assert "connection" not in client.get(f"{service.url}/v1/models").headers


# -- browsers


def test_a_preflight_has_no_key(service: Scripted) -> None:
    origin = {"origin": "https://a.example"}
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    answer = httpx.options(service.url + CHAT, headers=origin | asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-headers"] == "authorization"


def test_a_browser_may_read_refusals_and_limits(service: Scripted) -> None:
    origin = {"origin": "https://a.example"}
    answer = httpx.post(service.url + CHAT, json={}, headers=origin)
    refused(answer)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "retry-after-ms", *LIMIT_HEADERS} == set(exposed)


# -- whose request it is


@pytest.mark.parametrize(
    ("name", "asked", "granted"),
    [
        ("plain", None, 0),
        ("plain", -3, 0),
        ("plain", 3, 3),
        ("urgent", None, 0),
        ("urgent", -3, -3),
        ("urgent", -9, -5),
        ("low", None, 7),
        ("low", 9, 9),
    ],
)
def test_the_claim_has_the_keys_name_and_a_priority_that_it_may_ask_for(
    service: Scripted, engine: PlayedEngine, name: str, asked: int | None, granted: int
) -> None:
    assert ask(service, name, max_tokens=5, priority=asked).status_code == 200
    header = bearer(name) | ({} if asked is None else {"x-vllm-priority": str(asked)})
    assert httpx.post(service.url + CHAT, json={}, headers=header).status_code == 200
    assert engine.claims == [Claim(name, granted, 5), Claim(name, granted, None)]


def test_a_key_sees_and_uses_its_models_only(service: Scripted) -> None:
    def get(name: str, path: str) -> httpx.Response:
        return httpx.get(f"{service.url}/v1/models{path}", headers=bearer(name))

    def ids(name: str) -> list[str]:
        return [card["id"] for card in get(name, "").json()["data"]]

    assert ids("plain") == ["scripted", "org/with-slash"]
    assert ids("one_model") == ["org/with-slash"]
    assert get("one_model", "/org/with-slash").status_code == 200
    hidden, missing = get("one_model", "/scripted"), get("plain", "/nothing")
    assert hidden.status_code == missing.status_code == 404
    assert hidden.text == missing.text.replace("nothing", "scripted")

    assert ask(service, "one_model", model="org/with-slash").status_code == 200
    for path in (CHAT, "/tokenize"):
        # Without a name it would be the first one.
        for body in ({"model": "scripted"}, {"model": "nothing"}, {"model": ""}, {}):
            answer = ask(service, "one_model", path, **body)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "model_not_found"


# -- limits


def limits_of(response: httpx.Response) -> dict[str, str]:
    return {n: v for n, v in response.headers.items() if n.startswith("x-ratelimit")}


def test_requests_over_the_limit_are_refused_with_a_time_to_come_back(service: Scripted) -> None:
    first = ask(service, "few")
    assert limits_of(first) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": first.headers["x-ratelimit-reset-requests"],
    }
    assert first.headers["x-ratelimit-reset-requests"].startswith(("29.", "30"))
    # Neither lists nor refusals count; what the tokenizer answers does.
    for _ in range(5):
        httpx.get(f"{service.url}/v1/models", headers=bearer("few"))
        assert httpx.post(service.url + CHAT, content="{", headers=bearer("few")).status_code == 400
    assert ask(service, "few", "/tokenize").status_code == 200
    for path in (CHAT, "/tokenize", "/v1/embeddings"):
        refusal = ask(service, "few", path)
        assert refusal.status_code == 429
        error = refusal.json()["error"]
        assert error["code"] == "rate_limit_exceeded"
        assert "requests_per_minute" in error["message"]
        assert refusal.headers["x-ratelimit-remaining-requests"] == "0"
        assert 20_000 < int(refusal.headers["retry-after-ms"]) <= 37_500
        assert 20 < int(refusal.headers["retry-after"]) <= 38
    assert ask(service, "plain").status_code == 200


def test_a_refusal_on_messages_is_anthropics(service: Scripted) -> None:
    ask(service, "once")
    body = ask(service, "once", MESSAGES).json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("stream", [False, True])
def test_the_answers_have_the_state_of_the_limits(service: Scripted, stream: bool) -> None:
    before = ask(service, "streamer", "/tokenize")
    left = int(before.headers["x-ratelimit-remaining-tokens"])
    answer = ask(service, "streamer", stream=stream, estimate=40, max_tokens=100, n=4, use=7)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream") is stream
    assert set(limits_of(answer)) == set(LIMIT_HEADERS)
    assert answer.headers["x-ratelimit-limit-tokens"] == "600"
    # As reserved: 40 + 100 × 4. A little flows back meanwhile.
    assert left - 440 <= int(answer.headers["x-ratelimit-remaining-tokens"]) < left - 400
    after = ask(service, "streamer", "/tokenize")
    assert left - 7 <= int(after.headers["x-ratelimit-remaining-tokens"]) <= 600


def test_a_refusal_by_the_engine_has_them_too(service: Scripted) -> None:
    answer = httpx.post(service.url + CHAT, content="{", headers=bearer("patient"))
    assert answer.status_code == 400
    assert set(limits_of(answer)) == set(LIMIT_HEADERS)


def test_what_was_used_beyond_the_limit_has_to_flow_back(service: Scripted) -> None:
    assert ask(service, "debtor", estimate=10_000, use=150).status_code == 200
    refusal = ask(service, "debtor", estimate=0)
    assert refusal.status_code == 429
    assert "tokens_per_minute" in refusal.json()["error"]["message"]
    assert refusal.headers["x-ratelimit-remaining-tokens"] == "0"
    assert refusal.headers["x-ratelimit-reset-tokens"].startswith("1m")
    # The tokenizer does not work for tokens.
    assert ask(service, "debtor", "/tokenize").status_code == 200


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_so_many_in_flight(service: Scripted, engine: PlayedEngine) -> None:
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(ask, service, "narrow", hold=True) for _ in range(8)]
        eventually(lambda: sum(each.done() for each in asked) == 6)
        refusals = [each.result() for each in asked if each.done()]
        assert {each.status_code for each in refusals} == {429}
        assert all("max_concurrent" in each.text for each in refusals)
        assert all(1000 <= int(each.headers["retry-after-ms"]) <= 1250 for each in refusals)
        assert ask(service, "plain").status_code == 200
        engine.release.set()
        statuses = sorted(each.result().status_code for each in asked)
    assert statuses == [200] * 2 + [429] * 6
    assert ask(service, "narrow").status_code == 200


@pytest.mark.parametrize("leave", [False, True], ids=["stays", "leaves"])
def test_a_client_that_leaves_is_not_in_flight(
    service: Scripted, engine: PlayedEngine, leave: bool
) -> None:
    timeout = 1.0 if leave else 30.0
    with ThreadPoolExecutor(2) as pool:

        def held() -> int:
            try:
                with httpx.Client(timeout=timeout) as client:
                    url, headers = service.url + CHAT, bearer("narrow")
                    return client.post(url, json={"hold": True}, headers=headers).status_code
            except httpx.ReadTimeout:
                return 0

        asked = [pool.submit(held) for _ in range(2)]
        eventually(lambda: len(engine.claims) == 2)
        if leave:
            assert [each.result() for each in asked] == [0, 0]
            eventually(lambda: ask(service, "narrow").status_code == 200)
        else:
            assert ask(service, "narrow").status_code == 429
        engine.release.set()


def test_who_is_refused_at_the_door_gets_back_what_was_reserved(
    service: Scripted, engine: PlayedEngine
) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask, service, "plain", hold=True)
        eventually(lambda: len(engine.claims) == 4)
        for _ in range(12):
            answer = ask(service, "turned_away", estimate=90)
            assert answer.json()["error"]["code"] == "queue_full"
        engine.release.set()
    answer = ask(service, "turned_away", estimate=90)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-remaining-requests"] == "9"
    assert answer.headers["x-ratelimit-remaining-tokens"] in ("10", "11")


# -- unmodified clients


def test_the_openai_client(service: Scripted) -> None:
    def client(name: str) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{service.url}/v1", api_key=secret(name), max_retries=0, timeout=30
        )

    with client("plain") as good:
        assert [model.id for model in good.models.list()] == ["scripted", "org/with-slash"]
        assert good.chat.completions.create(model="scripted", messages=[]).id == "1"
    with client("patient") as limited:
        whole = limited.chat.completions.with_raw_response.create(model="scripted", messages=[])
        assert whole.headers["x-ratelimit-remaining-requests"].isdecimal()
    with client("nobody") as bad:
        with pytest.raises(openai.AuthenticationError) as wrong:
            bad.chat.completions.create(model="scripted", messages=[])
        assert wrong.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            bad.models.list()
    with client("one_model") as other, pytest.raises(openai.NotFoundError):
        other.chat.completions.create(model="scripted", messages=[])


def test_the_openai_client_is_told_of_a_limit(service: Scripted) -> None:
    with openai.OpenAI(
        base_url=f"{service.url}/v1", api_key=secret("once"), max_retries=0
    ) as client:
        ask(service, "once")
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model="scripted", messages=[])
        assert limited.value.code == "rate_limit_exceeded"


def test_the_anthropic_client(service: Scripted) -> None:
    def client(name: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=service.url, api_key=secret(name), max_retries=0, timeout=30
        )

    with client("plain") as good:
        assert good.messages.create(model="scripted", messages=[], max_tokens=1).id == "1"
    with client("nobody") as bad:
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            bad.messages.create(model="scripted", messages=[], max_tokens=1)
        body = wrong.value.body
        assert isinstance(body, dict)
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
    ask(service, "once")
    with client("once") as limited, pytest.raises(anthropic.RateLimitError):
        limited.messages.create(model="scripted", messages=[], max_tokens=1)


# -- the log


def test_the_log_has_the_name_and_never_the_key(
    service: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(service, "plain")
        ask(service, "plain", "/nowhere")
        ask(service, "one_model", model="x")
        httpx.get(f"{service.url}/v1/models", headers={"x-api-key": secret("plain")})
        refused(ask(service, "nobody"))
        # A line is written after its answer; by the end of this, those of the above are there.
        ask(service, "plain", "/nowhere")
    records = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    lines = [r.__dict__["fields"] for r in records if r.name == "tidegate.request"]
    assert [(line["key"], line["status"]) for line in lines[:5]] == [
        ("plain", 200),
        ("plain", 404),
        ("one_model", 404),
        ("plain", 200),
        (None, 401),
    ]
    assert lines[4]["finish_reason"] == "invalid_api_key"
    everything = str([record.__dict__ for record in records])
    assert "the-secret" not in everything
    assert hash_of(secret("plain")) not in everything


def test_refusals_are_counted(service: Scripted) -> None:
    def count() -> float:
        samples = parsed(httpx.get(f"{service.ops_url}/metrics").text)
        name = "tidegate_rejected_requests_total"
        return total(samples, name, status="401", reason="invalid_api_key")

    ask(service, "nobody")
    ask(service, "nobody")
    before = count()
    ask(service, "nobody")
    eventually(lambda: count() > before)


# -- the file changes


def status_of(service: Scripted, name: str) -> int:
    return httpx.get(f"{service.url}/v1/models", headers=bearer(name)).status_code


def failed(service: Scripted) -> float:
    samples = parsed(httpx.get(f"{service.ops_url}/metrics").text)
    return total(samples, "tidegate_keys_reload_failed")


@contextmanager
def mounted(directory: Path, **keys: Mapping[str, Any]) -> Iterator[tuple[Scripted, Mounted]]:
    secret_volume = Mounted(directory)
    secret_volume.swap(listing(**keys))
    engine = PlayedEngine()
    settings = (f"--auth.keys_file={secret_volume.path}", "--server.ops_port=0")
    try:
        with scripted(*settings, engine=engine) as running:
            yield running, secret_volume
    finally:
        engine.release.set()


def test_a_swapped_secret_is_in_force_within_10_s(tmp_path: Path) -> None:
    with mounted(tmp_path, old={}) as (running, volume):
        assert (status_of(running, "old"), status_of(running, "new")) == (200, 401)
        volume.swap(listing(new={}))
        eventually(lambda: status_of(running, "new") == 200)
        assert status_of(running, "old") == 401


def test_a_change_of_keys_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.main.RELOAD_S", 0.05)
    caplog.set_level(logging.INFO, "app.auth.keyring")
    limits = {"requests_per_minute": 10}
    with mounted(tmp_path, stays=limits, leaves={}) as (running, volume):
        engine = running.engine
        assert isinstance(engine, PlayedEngine)
        assert failed(running) == 0
        ask(running, "stays")
        ask(running, "stays")
        with ThreadPoolExecutor(1) as pool:
            in_flight = pool.submit(ask, running, "leaves", hold=True, stream=True)
            eventually(lambda: len(engine.claims) == 3)

            volume.swap("keys: [{name: stays}]")
            eventually(lambda: failed(running) == 1)
            assert status_of(running, "leaves") == status_of(running, "stays") == 200

            volume.swap(listing(stays={"requests_per_minute": 20}))
            eventually(lambda: status_of(running, "leaves") == 401)
            assert failed(running) == 0
            # What was used is not forgotten; a little has flowed back.
            answer = ask(running, "stays")
            assert answer.headers["x-ratelimit-remaining-requests"] in ("17", "18")
            engine.release.set()
            assert in_flight.result().status_code == 200
            assert in_flight.result().text.endswith("data: [DONE]\n\n")
        volume.path.unlink()
        eventually(lambda: failed(running) == 1)
        assert status_of(running, "stays") == 200
    levels = [r.levelname for r in caplog.records if r.name == "app.auth.keyring"]
    assert levels == ["ERROR", "INFO", "ERROR"]
