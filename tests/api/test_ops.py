"""Probes, metrics and the second port; what the middleware does for every path."""

import json
import logging
import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.embedded import SERVED_NAME
from app.workload import InHand, StepRecord
from tests.rig.scripted import Scripted, ScriptedEngine, scripted

PROBES = ["/livez", "/readyz", "/health", "/metrics"]
CHAT = {"messages": [{"role": "user", "content": "a secret"}]}


@pytest.fixture(scope="module")
def one_port() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


@pytest.fixture(scope="module")
def two_ports() -> Iterator[Scripted]:
    with scripted("--server.ops_port=0") as running:
        yield running


@pytest.mark.parametrize("path", PROBES)
def test_with_one_port_it_answers_everything(one_port: Scripted, path: str) -> None:
    assert httpx.get(one_port.url + path).status_code == 200


@pytest.mark.parametrize("path", PROBES)
def test_with_two_ports_probes_and_metrics_are_only_on_the_second(
    two_ports: Scripted, path: str
) -> None:
    assert httpx.get(two_ports.ops_url + path).status_code == 200
    refused = httpx.get(two_ports.url + path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/openapi.json"])
def test_the_second_port_has_nothing_else(two_ports: Scripted, path: str) -> None:
    assert httpx.get(two_ports.url + path).status_code == 200
    assert httpx.get(two_ports.ops_url + path).status_code == 404


def test_a_dead_engine_fails_the_probes_and_every_request() -> None:
    with scripted() as running:
        running.engine.dead = True
        for path in ("/livez", "/readyz", "/health"):
            answer = httpx.get(running.url + path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_dead")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_a_probe_may_ask_for_the_head_alone(one_port: Scripted, path: str) -> None:
    answer = httpx.head(one_port.url + path)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("path", ["/admin/state", "/admin/drain", "/admin/steps"])
def test_admin_routes_are_only_on_a_port_of_their_own(
    one_port: Scripted, two_ports: Scripted, path: str
) -> None:
    method = "POST" if path.endswith("drain") else "GET"
    for url in (one_port.url, two_ports.url):
        assert httpx.request(method, url + path).status_code == 404


def test_the_state_is_told_to_a_person(two_ports: Scripted) -> None:
    assert httpx.get(f"{two_ports.ops_url}/admin/state").json() == {
        "phase": "ready",
        "stage": None,
        "in_flight_requests": 0,
        "pending_sequences": 0,
        "running_sequences": 0,
        "engine_stalled_s": 0.0,
        "drain_left_s": 0.0,
    }


def test_steps_are_told_only_where_they_are_kept(two_ports: Scripted) -> None:
    assert httpx.get(f"{two_ports.ops_url}/admin/steps").status_code == 404
    engine = ScriptedEngine()
    engine.step_records = [
        StepRecord(float(at), 0, 16, 2, 50, ((16, 0),), 0.01, 3, 1, 0, 0) for at in range(1200)
    ]
    with scripted("--server.ops_port=0", "--metrics.step_records=9", engine=engine) as running:
        answer = httpx.get(f"{running.ops_url}/admin/steps")
        head, *steps = [json.loads(line) for line in answer.text.splitlines()]
    assert (head["kind"], head["schema"], head["model"]) == ("steps", 1, SERVED_NAME)
    assert head["engine"]["max_num_seqs"] == 4
    assert [step["at"] for step in steps] == list(range(1200))
    assert steps[0]["prompts"] == [[16, 0]]


def test_a_drain_that_is_asked_for_settles_first() -> None:
    with scripted("--server.ops_port=0") as running:
        chat = f"{running.url}/v1/chat/completions"
        assert "connection" not in httpx.post(chat, json=CHAT).headers
        asked = httpx.post(f"{running.ops_url}/admin/drain")
        assert (asked.status_code, asked.json()["phase"]) == (202, "draining")
        assert 100 < asked.json()["drain_left_s"] <= 125
        ready = httpx.get(f"{running.ops_url}/readyz")
        assert (ready.status_code, ready.json()["error"]["code"]) == (503, "draining")
        assert httpx.get(f"{running.ops_url}/livez").status_code == 200
        assert httpx.get(f"{running.ops_url}/health").status_code == 200
        settling = httpx.post(chat, json=CHAT)
        assert (settling.status_code, settling.headers["connection"]) == (200, "close")


def test_after_settling_requests_are_refused() -> None:
    with scripted("--server.ops_port=0", "--lifecycle.drain_settle_s=0") as running:
        httpx.post(f"{running.ops_url}/admin/drain")
        refused = httpx.post(f"{running.url}/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert httpx.get(f"{running.ops_url}/health").status_code == 200


def test_an_engine_that_hangs_is_not_ready_and_later_not_alive() -> None:
    limits = ("--lifecycle.stall_timeout_s=0.3", "--lifecycle.dead_after_s=1")
    with scripted(*limits) as running:
        running.engine.hand = InHand(1)
        for path, code in (("/readyz", 503), ("/health", 503), ("/livez", 503)):
            _eventually(running.url + path, code)
        # What it had is taken back, which says nothing of the engine; it is asked.
        running.engine.hand = InHand(0)
        assert httpx.get(f"{running.url}/readyz").json()["error"]["code"] == "stalled"
        running.engine.answers.set()
        for path in ("/readyz", "/health", "/livez"):
            _eventually(running.url + path, 200)


def _eventually(url: str, status: int, within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while httpx.get(url).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("POST", "/v1/models"), ("GET", "/livez"), ("DELETE", "/x")]
)
def test_every_response_has_a_request_id(one_port: Scripted, method: str, path: str) -> None:
    mine = httpx.request(method, one_port.url + path, headers={"x-request-id": "me:1.a-B_c"})
    assert mine.headers["x-request-id"] == "me:1.a-B_c"
    odd = httpx.request(method, one_port.url + path, headers={"x-request-id": "no spaces"})
    assert odd.headers["x-request-id"] not in ("", "no spaces")


def test_browsers_may_call_only_from_the_origins_that_are_set() -> None:
    preflight = {"access-control-request-method": "POST", "origin": "https://a.example"}
    with scripted('--server.cors_origins=["https://a.example"]') as running:
        url = f"{running.url}/v1/chat/completions"
        allowed = httpx.options(url, headers=preflight)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert allowed.headers["x-request-id"]
        other = httpx.options(url, headers=preflight | {"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
        assert other.status_code == 400
        assert other.json()["error"]["code"] == "invalid_value"
        answer = httpx.post(url, json=CHAT, headers={"origin": "https://a.example"})
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_browsers_may_not_call_by_default(one_port: Scripted) -> None:
    answer = httpx.post(
        f"{one_port.url}/v1/chat/completions", json=CHAT, headers={"origin": "https://a.example"}
    )
    assert "access-control-allow-origin" not in answer.headers


def test_one_line_per_request_without_its_content(
    one_port: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tidegate.request"):
        mine = {"x-request-id": "line-1"}
        for path in PROBES:
            httpx.get(one_port.url + path, headers=mine)
        answer = httpx.post(f"{one_port.url}/v1/chat/completions", json=CHAT, headers=mine)
        httpx.get(f"{one_port.url}/nowhere", headers=mine)
        # A line is written after its answer; by the end of this, those of the above are there.
        httpx.get(f"{one_port.url}/nowhere", headers={"x-request-id": "last"})
    assert answer.json() == {"answer": 42}
    lines = [r for r in caplog.records if r.name == "tidegate.request"]
    fields = [f for record in lines if (f := record.__dict__["fields"])["id"] == "line-1"]
    assert [(f["route"], f["status"]) for f in fields] == [
        ("chat_completions", 200),
        ("unknown", 404),
    ]
    assert fields[0]["id"] == "line-1"
    assert fields[0]["model"] == "scripted"
    assert "secret" not in str([record.__dict__ for record in caplog.records])


def test_unknown_paths_share_one_label(one_port: Scripted) -> None:
    for number in range(5):
        httpx.get(f"{one_port.url}/made/up/{number}")
    text = httpx.get(f"{one_port.url}/metrics").text
    routes = {
        sample.labels["route"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tidegate_requests_total"
    }
    assert "unknown" in routes
    assert not any("made" in route for route in routes)


def test_models_are_listed_and_retrieved_also_with_a_slash(one_port: Scripted) -> None:
    assert len(httpx.get(f"{one_port.url}/v1/models").json()["data"]) == 2
    assert httpx.get(f"{one_port.url}/v1/models/org/with-slash").json()["id"] == "org/with-slash"
    missing = httpx.get(f"{one_port.url}/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_the_description_has_the_engines_schemas(one_port: Scripted) -> None:
    for _ in range(2):
        document = httpx.get(f"{one_port.url}/openapi.json").json()
        body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
        schema = body["content"]["application/json"]["schema"]
        assert schema["properties"]["messages"]["$ref"] == "#/components/schemas/Messages"
        assert document["components"]["schemas"]["Messages"] == {"type": "array"}


def test_the_engine_is_stopped_with_the_server() -> None:
    with scripted() as running:
        assert not running.engine.stopped
    assert running.engine.stopped
