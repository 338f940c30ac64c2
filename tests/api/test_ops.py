"""Probes, metrics and the second port; what the middleware does for every path."""

import logging
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.rig.scripted import Scripted, scripted

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


def test_a_dead_engine_fails_the_probes_and_every_request(one_port: Scripted) -> None:
    one_port.engine.dead = True
    try:
        for path in ("/livez", "/readyz", "/health"):
            answer = httpx.get(one_port.url + path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        answer = httpx.post(f"{one_port.url}/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_dead")
    finally:
        one_port.engine.dead = False


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
