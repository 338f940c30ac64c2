"""The error tree: one body, below 10 kB, with honest retry advice."""

import json

import pytest

from app import errors
from app.errors import EngineDead, InvalidValue, MethodNotAllowed, Starting, TidegateError

CASES = [
    (errors.InvalidValue("m", "p"), 400, "invalid_value"),
    (errors.InvalidJson("m"), 400, "invalid_json"),
    (errors.ContextLengthExceeded("m"), 400, "context_length_exceeded"),
    (errors.Unauthorized("m"), 401, "invalid_api_key"),
    (errors.NotFound("m"), 404, "not_found"),
    (errors.ModelNotFound("m"), 404, "model_not_found"),
    (errors.MethodNotAllowed("m", "POST"), 405, "method_not_allowed"),
    (errors.BodyTimeout("m"), 408, "request_timeout"),
    (errors.BodyTooLarge("m"), 413, "request_too_large"),
    (errors.RateLimited("m", 5.0), 429, "rate_limit_exceeded"),
    (errors.ClientDisconnected(), 499, "client_disconnected"),
    (errors.InternalError(), 500, "internal_error"),
    (errors.EngineDead(), 500, "engine_dead"),
    (errors.EngineAborted(), 500, "engine_aborted"),
    (errors.Starting("loading"), 503, "starting"),
    (errors.Draining(), 503, "draining"),
    (errors.Stalled(31.0), 503, "stalled"),
    (errors.QueueTimeout(30.0), 503, "queue_timeout"),
    (errors.QueueFull(429, 1.0), 429, "queue_full"),
    (errors.Overloaded(503, 1.0), 503, "overloaded"),
]


def every_error() -> set[type[TidegateError]]:
    found: set[type[TidegateError]] = set()
    todo = [TidegateError]
    while todo:
        children = todo.pop().__subclasses__()
        found.update(children)
        todo.extend(children)
    return found


@pytest.mark.parametrize(("error", "status", "code"), CASES)
def test_status_code_and_body(error: TidegateError, status: int, code: str) -> None:
    assert (error.status, error.code) == (status, code)
    body = error.body()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code


def test_the_table_has_every_error() -> None:
    abstract = {errors.BadRequest, errors.Overload}
    assert {type(error) for error, _, _ in CASES} == every_error() - abstract


def test_the_drawing_of_the_tree_has_every_error() -> None:
    assert {error.__name__ for error in every_error() if error.__name__ not in errors.__doc__} == (
        set()
    )


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f30a" * 100_000, "\ud800" * 50_000])
def test_a_body_stays_below_10_kb(text: str) -> None:
    error = InvalidValue(text, param=text)
    assert len(json.dumps(error.body())) < 10_000
    assert len(json.dumps(error.body(), ensure_ascii=False).encode()) < 10_000


def test_anthropic_clients_find_their_type() -> None:
    assert InvalidValue("m").anthropic_body()["type"] == "error"
    assert InvalidValue("m").anthropic_body()["error"]["type"] == "invalid_request_error"
    assert Starting("loading").anthropic_body()["error"]["type"] == "overloaded_error"
    assert EngineDead().anthropic_body()["error"]["type"] == "api_error"


def test_retry_advice_is_spread_and_consistent() -> None:
    seen = [Starting("loading").headers() for _ in range(200)]
    milliseconds = [int(headers["retry-after-ms"]) for headers in seen]
    assert all(3_750 <= ms <= 6_250 for ms in milliseconds)
    assert len(set(milliseconds)) > 20
    assert all(1 <= int(headers["retry-after"]) <= 60 for headers in seen)


def test_who_comes_back_as_told_is_not_refused_again_by_a_limit() -> None:
    seen = [errors.RateLimited("m", 5.0).headers() for _ in range(200)]
    assert all(5_000 <= int(headers["retry-after-ms"]) <= 6_250 for headers in seen)
    assert all(int(h["retry-after"]) * 1000 >= int(h["retry-after-ms"]) for h in seen)


def test_without_a_key_the_scheme_is_named() -> None:
    assert errors.Unauthorized("m").headers() == {"www-authenticate": "Bearer"}


def test_only_a_refusal_for_now_says_when_to_come_back() -> None:
    assert "retry-after" not in InvalidValue("m").headers()


def test_a_wrong_method_names_the_right_ones() -> None:
    assert MethodNotAllowed("m", "POST").headers() == {"allow": "POST"}
