"""Bad HTTP and bad JSON on every route: the status, the code and the shape of the contract."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.rig.bodies import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    GENERATIVE,
    ROUTES,
    body,
    error_of,
)
from tests.rig.service import Service

JSON = {"content-type": "application/json"}
MAX_BODY = 10 << 20
DEEP = 100_000

every_route = pytest.mark.parametrize("path", ROUTES)


@pytest.fixture(scope="module")
def client(service: Service) -> httpx.Client:
    return service.client()


def post(
    client: httpx.Client, path: str, content: bytes | Iterator[bytes], **headers: str
) -> httpx.Response:
    return client.post(path, content=content, headers=JSON | headers)


@every_route
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"{",
        b'{"a":1}x',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":01}',
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":"\\ud800"}',
        b'{"a":"\\udc00\\ud800"}',
        b'{"\\ud800":1}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        b"\x00",
        '{"a":1}'.encode("utf-16"),
    ],
    ids=lambda content: repr(content[:24]),
)
def test_what_is_not_json(client: httpx.Client, path: str, content: bytes) -> None:
    error_of(post(client, path, content), 400, "invalid_json")


@every_route
@pytest.mark.parametrize("content", [b"[]", b"[{}]", b"null", b'"x"', b"3", b"true"])
def test_json_that_is_no_object(client: httpx.Client, path: str, content: bytes) -> None:
    error_of(post(client, path, content), 400, "invalid_value")


@every_route
def test_an_empty_object(client: httpx.Client, path: str) -> None:
    assert error_of(post(client, path, b"{}"), 400, "invalid_value")["param"]


@every_route
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "", "json"]
)
def test_a_wrong_content_type(client: httpx.Client, path: str, kind: str) -> None:
    content = json.dumps(body(path)).encode()
    error = error_of(post(client, path, content, **{"content-type": kind}), 400, "invalid_value")
    assert error["param"] == "content-type"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_a_right_content_type(client: httpx.Client, kind: str) -> None:
    content = json.dumps(body(COMPLETIONS)).encode()
    assert post(client, COMPLETIONS, content, **{"content-type": kind}).status_code == 200


@pytest.mark.parametrize("head", ["NOPE / HTTP/1.1", "GET / HTTP/9.9", "GET /\x00 HTTP/1.1", "x"])
def test_what_is_not_http(service: Service, head: str) -> None:
    port = httpx.URL(service.url).port or 0
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        raw.sendall(f"{head}\r\nhost: x\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    top, _, content = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nx-request-id: " in top
    assert json.loads(content)["error"]["code"] == "invalid_value"


# -- the body's size


def sized(path: str, size: int) -> bytes:
    """The route's good body with a field that nobody reads, `size` bytes in all."""
    bare = len(json.dumps(body(path, padding="")))
    return json.dumps(body(path, padding="x" * (size - bare))).encode()


def chunked(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 1 << 16):
        yield content[start : start + (1 << 16)]


def test_a_body_of_the_greatest_size(client: httpx.Client) -> None:
    content = sized(COMPLETIONS, MAX_BODY)
    assert post(client, COMPLETIONS, content).status_code == 200
    assert post(client, COMPLETIONS, chunked(content)).status_code == 200


@every_route
def test_a_body_of_one_byte_more(client: httpx.Client, path: str) -> None:
    content = sized(path, MAX_BODY + 1)
    error_of(post(client, path, content), 413, "request_too_large")
    error_of(post(client, path, chunked(content)), 413, "request_too_large")


def test_a_length_that_only_is_announced_is_refused_at_once(service: Service) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0), 10) as raw:
        raw.sendall(f"{head}content-length: {MAX_BODY + 1}\r\n\r\n".encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")


# -- paths and methods


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/nope",
        "/V1/completions",
        "/docs",
        "/redoc",
        "/%00",
        "/%ff",
        "/" + "x/" * 5000,
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/cancel",
        "/v1/completions/render",
        *(f"{path}/" for path in ROUTES),
        *(f"/{path}" for path in ROUTES),
        *(f"/v1/{path}" for path in ROUTES),
    ],
    ids=lambda path: path[:40],
)
def test_an_unknown_path(client: httpx.Client, path: str) -> None:
    url = client.base_url.copy_with(raw_path=path.encode())
    for method in ("GET", "POST", "DELETE"):
        response = client.request(method, url, json=body(COMPLETIONS))
        error_of(response, 404, "not_found")
    response = client.head(url)
    assert response.status_code == 404
    assert response.headers["x-request-id"]


@every_route
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_a_wrong_method(client: httpx.Client, path: str, method: str) -> None:
    response = client.request(method, path)
    error_of(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/models", "/v1/models/tiny", "/version", "/openapi.json"),
        *("/livez", "/readyz", "/health", "/metrics"),
    ],
)
def test_a_wrong_method_where_one_only_reads(client: httpx.Client, path: str) -> None:
    for method in ("POST", "DELETE"):
        response = client.request(method, path, json={})
        error_of(response, 405, "method_not_allowed")
        assert response.headers["allow"] == "GET"


@pytest.mark.parametrize("name", ["nope", "tiny/", "Tiny", "tiny%00", "%2e%2e", "x" * 5000, "😀"])
def test_a_model_that_is_not_served(client: httpx.Client, name: str) -> None:
    error = error_of(client.get(f"/v1/models/{name}"), 404, "model_not_found")
    assert error["param"] == "model"


@pytest.mark.parametrize("path", ROUTES)
def test_an_error_is_short_whatever_it_repeats(client: httpx.Client, path: str) -> None:
    for character in ("\x01", "😀", '"', "ü"):
        wrong = {"model": character * 20_000, "temperature": character * 20_000}
        for fields in (wrong, {"model": wrong["model"]}):
            response = client.post(path, json=body(path, **fields))
            expected = (404, "model_not_found") if "model" in fields else (400, "invalid_value")
            error_of(response, *expected)
        response = client.get("/v1/models/" + "%01" * 10_000)
        error_of(response, 404, "model_not_found")


def test_the_model_that_is_served(client: httpx.Client) -> None:
    assert client.get("/v1/models/tiny").json()["id"] == "tiny"


def test_the_model_cannot_embed(client: httpx.Client) -> None:
    error = error_of(client.post(EMBEDDINGS, json=body(EMBEDDINGS)), 400, "invalid_value")
    assert error["param"] == "model"


# -- request ids

GOOD_IDS = ["a", "A.b_c-d:9", "x" * 128, "0", ":", "----"]
BAD_IDS = ["", "x" * 129, "a b", "a/b", "a\tb", "ä".encode(), b"\xff", "a,b", "{}", "a%20b", "a;b"]


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/models", "/nope", "/livez"])
@pytest.mark.parametrize("given", GOOD_IDS)
def test_a_good_request_id_comes_back(client: httpx.Client, path: str, given: str) -> None:
    response = client.post(path, json={}, headers={"x-request-id": given})
    assert response.status_code in (400, 404, 405)
    assert response.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize("given", BAD_IDS, ids=repr)
def test_a_bad_request_id_is_replaced(client: httpx.Client, given: str | bytes) -> None:
    raw = given if isinstance(given, bytes) else given.encode()
    headers = {b"x-request-id": raw, b"content-type": b"application/json"}
    ids = set()
    for _ in range(2):
        response = client.post(COMPLETIONS, content=b"{}", headers=headers)
        (ours,) = response.headers.get_list("x-request-id")
        assert ours.isalnum()
        ids.add(ours)
    assert len(ids) == 2


@pytest.mark.parametrize("path", GENERATIVE)
def test_a_repeated_request_id_gives_different_body_ids(client: httpx.Client, path: str) -> None:
    def answer() -> str:
        own = {"request_id": "the-same"}
        response = client.post(path, json=body(path, **own), headers={"x-request-id": "the-same"})
        assert response.headers["x-request-id"] == "the-same"
        return str(response.json()["id"])

    assert len({answer() for _ in range(3)}) == 3
