"""When the status line is sent, on scripts that a real engine cannot be made to play."""

from collections.abc import Iterator, Sequence

import httpx
import pytest

from app.errors import EngineAborted, InvalidValue
from tests.rig.scripted import OUTPUT, Scripted, scripted

HELLO = 'data: {"choices":[{"text":"hello"}]}\n\n'
DONE = "data: [DONE]\n\n"
COMMENT = ": keep-alive\n\n"
HANDLERS_400 = 'data: {"error":{"message":"bad tool","type":"x","param":"tools","code":400}}\n\n'


@pytest.fixture(scope="module")
def service() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


def answer(service: Scripted, script: Sequence[str | Exception]) -> httpx.Response:
    service.engine.script = script
    body = {"messages": [], "stream": True}
    return httpx.post(f"{service.url}/v1/chat/completions", json=body)


def test_a_stream_passes_through(service: Scripted) -> None:
    response = answer(service, [OUTPUT, HELLO, HELLO, DONE])
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text == HELLO + HELLO + DONE


def test_chunks_before_the_first_output_are_not_lost(service: Scripted) -> None:
    assert answer(service, [HELLO, HELLO, OUTPUT, HELLO, DONE]).text == HELLO * 3 + DONE


def test_a_stream_without_any_output_is_sent_as_it_is(service: Scripted) -> None:
    assert answer(service, [HELLO, DONE]).text == HELLO + DONE


def test_comments_are_sent_only_after_the_status_is_known(service: Scripted) -> None:
    assert answer(service, [COMMENT, OUTPUT, HELLO, COMMENT, DONE]).text == HELLO + COMMENT + DONE


@pytest.mark.parametrize("held", [[], [HELLO]], ids=["nothing", "held back"])
def test_a_failure_before_the_first_output_is_a_status(service: Scripted, held: list[str]) -> None:
    response = answer(service, [*held, InvalidValue("no", "p")])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "p"


def test_a_handlers_own_refusal_before_the_first_output_is_a_status(service: Scripted) -> None:
    response = answer(service, [HANDLERS_400, DONE])
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "bad tool",
        "type": "invalid_request_error",
        "param": "tools",
        "code": "invalid_value",
    }


def test_what_a_handler_trips_over_later_is_our_failure(service: Scripted) -> None:
    response = answer(service, [OUTPUT, HELLO, HANDLERS_400, DONE])
    assert response.status_code == 200
    assert response.text.startswith(HELLO)
    assert '"code": "internal_error"' in response.text
    assert "[DONE]" not in response.text


def test_a_failure_after_the_first_output_ends_the_stream(service: Scripted) -> None:
    response = answer(service, [OUTPUT, HELLO, EngineAborted()])
    assert response.status_code == 200
    assert response.text.startswith(HELLO)
    assert '"code": "engine_aborted"' in response.text
    assert "[DONE]" not in response.text


def test_no_exception_text_reaches_the_client(service: Scripted) -> None:
    response = answer(service, [RuntimeError("/etc/passwd")])
    assert response.status_code == 500
    assert "passwd" not in response.text
