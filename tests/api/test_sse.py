"""The event grammars, on chunks as vllm 0.32 makes them."""

import json

import pytest
from pydantic_core import to_json

from app.api.sse import (
    MessagesGrammar,
    OpenAIGrammar,
    ResponsesGrammar,
    encode,
    grammar_of,
    is_comment,
)
from app.engine.protocol import Operation
from app.errors import EngineAborted, InternalError, InvalidValue

CHUNK = 'data: {"id":"cmpl-1","choices":[{"index":0,"text":"say \\"usage\\": 1"}]}\n\n'
LAST = 'data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":1}}\n\n'
DONE = "data: [DONE]\n\n"


def data_of(event: str) -> dict[str, object]:
    assert event.endswith("\n\n")
    content: dict[str, object] = json.loads(event.rstrip("\n").rpartition("\n")[2][len("data: ") :])
    return content


def test_null_usage_is_added_where_there_is_none() -> None:
    grammar = OpenAIGrammar(null_usage=True)
    assert data_of(grammar.render(CHUNK))["usage"] is None
    assert grammar.render(LAST) == LAST
    assert grammar.render(DONE) == DONE


def test_nobody_who_did_not_ask_gets_usage() -> None:
    assert OpenAIGrammar(null_usage=False).render(CHUNK) == CHUNK


@pytest.mark.parametrize(
    ("chunk", "failure"),
    [
        (CHUNK, None),
        (LAST, None),
        (DONE, None),
        ('data: {"error":{"message":"bad","type":"x","param":"p","code":400}}\n\n', InvalidValue),
        (
            'data: {"error": {"message":"bad","type":"x","param":null,"code":500}}\n\n',
            InternalError,
        ),
    ],
)
def test_a_handlers_own_failure_is_seen(chunk: str, failure: type[Exception] | None) -> None:
    found = OpenAIGrammar(null_usage=False).failure_in(chunk)
    assert type(found) is (failure or type(None))


def test_an_openai_failure_is_a_top_level_error_without_done() -> None:
    event = OpenAIGrammar(null_usage=True).failure(EngineAborted())
    assert data_of(event) == EngineAborted().body()
    assert "[DONE]" not in event


def test_a_failed_response_carries_the_response_that_it_ends() -> None:
    grammar = ResponsesGrammar()
    created = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
    grammar.render(f"event: response.created\ndata: {json.dumps(created)}\n\n")
    event = grammar.failure(EngineAborted())
    assert event.startswith("event: response.failed\n")
    content = data_of(event)
    assert content["sequence_number"] == 1
    assert content["response"] == {
        "id": "resp_1",
        "status": "failed",
        "error": {"code": "server_error", "message": EngineAborted().message},
    }


@pytest.mark.parametrize("name", ["error", "response.failed"])
def test_a_responses_failure_is_seen(name: str) -> None:
    assert isinstance(
        ResponsesGrammar().failure_in(f"event: {name}\ndata: {{}}\n\n"), InternalError
    )
    assert ResponsesGrammar().failure_in("event: response.created\ndata: {}\n\n") is None


def test_a_messages_failure_is_its_own_event() -> None:
    grammar = MessagesGrammar()
    event = grammar.failure(EngineAborted())
    assert event.startswith("event: error\n")
    assert data_of(event)["type"] == "error"
    assert isinstance(grammar.failure_in(event), InternalError)
    assert grammar.failure_in("event: message_start\ndata: {}\n\n") is None


@pytest.mark.parametrize(
    ("operation", "grammar"),
    [
        (Operation.COMPLETIONS, OpenAIGrammar),
        (Operation.CHAT, OpenAIGrammar),
        (Operation.RESPONSES, ResponsesGrammar),
        (Operation.MESSAGES, MessagesGrammar),
    ],
)
def test_each_route_has_its_grammar(operation: Operation, grammar: type[object]) -> None:
    assert type(grammar_of(operation, null_usage=False)) is grammar


def test_keep_alive_is_not_an_output() -> None:
    assert is_comment(": keep-alive\n\n")
    assert not is_comment(CHUNK)


@pytest.mark.parametrize("text", ["plain", "å∑😀", "a\x85b\u2028c\u2029d", "\x0b\x0c\x1c\x1d\x1e"])
def test_an_event_is_one_line_however_lines_are_split(text: str) -> None:
    chunk = f"data: {to_json({'text': text}).decode()}\n\n"
    sent = encode(chunk).decode()
    event, end = sent.splitlines()
    assert end == ""
    assert json.loads(event.removeprefix("data: ")) == {"text": text}


def test_what_cannot_be_encoded_is_replaced() -> None:
    assert encode('data: "a\udc80"\n\n') == b'data: "a?"\n\n'
