"""The short way of a stream, without an engine: what it learns, sends and leaves alone."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_core import to_json

from app.api.push import ShortWay
from app.api.sse import encode

HEAD = 'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"a\\"b\u2028"'
TEXT = (
    HEAD + ',"choices":[{"index":0,"text":"He \\"said\\"","logprobs":null,"finish_reason":null,'
    '"stop_reason":null}]}\n\n'
)
ROLE = 'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DELTA = (
    'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":null,'
    '"finish_reason":null,"token_ids":null}],"usage":null}\n\n'
)


@dataclass
class Wire:
    """A server's side of an answer."""

    free: bool = True
    sent: list[bytes] = field(default_factory=list)

    def write(self, body: bytes) -> None:
        self.sent.append(body)

    def events(self) -> list[dict[str, Any]]:
        events = b"".join(self.sent).decode().split("\n\n")
        assert events.pop() == ""
        return [json.loads(event.removeprefix("data: ")) for event in events]


def way(wire: Wire, chunk: str = TEXT) -> ShortWay:
    made = ShortWay(wire)
    made.open(empties=True)
    made.learn(chunk)
    return made


@pytest.mark.parametrize(
    "text", ["", "x", "text", 'a "b" \\ /\n\t\b\x00\x1f\x7f', "å∑😀", "\x85\u2028\u2029"]
)
@pytest.mark.parametrize("choice", [0, 7])
def test_what_is_sent_is_the_pattern_with_another_text(text: str, choice: int) -> None:
    wire = Wire()
    way(wire).push(choice, text)
    rendered = TEXT.replace('"He \\"said\\""', to_json(text).decode())
    assert wire.sent == [encode(rendered.replace('"index":0', f'"index":{choice}'))]


def test_of_several_chunks_the_last_is_the_pattern() -> None:
    wire = Wire()
    way(wire, ROLE + DELTA).push(1, "ya")
    (event,) = wire.events()
    assert event["choices"][0]["delta"] == {"content": "ya"}
    assert event["choices"][0]["index"] == 1
    assert event["usage"] is None


@pytest.mark.parametrize(
    "chunk",
    [
        ROLE,
        TEXT.replace('"finish_reason":null', '"finish_reason":"stop"'),
        TEXT.replace("}]}", '}],"usage":{"prompt_tokens":1}}'),
        TEXT.replace('"logprobs":null', '"logprobs":{"tokens":["x"]}'),
        TEXT.replace('"stop_reason":null', '"prompt_token_ids":[1,2]'),
        "data: [DONE]\n\n",
        ": keep-alive\n\n",
        'data: {"error":{"message":"text","code":null}}\n\n',
        "",
    ],
)
def test_what_is_no_pattern_leaves_the_way_closed(chunk: str) -> None:
    assert not way(Wire(), chunk).free


def test_it_is_free_only_when_nothing_is_before_it() -> None:
    wire = Wire()
    made = way(wire)
    assert made.free
    made.sending = True
    assert not made.free
    made.sending, wire.free = False, False
    assert not made.free
    wire.free = True
    assert made.free
    made.close()
    assert not made.free


def test_a_lone_surrogate_is_replaced() -> None:
    wire = Wire()
    way(wire).push(0, "a\udc80b")
    assert wire.events()[0]["choices"][0]["text"] == "a?b"


def test_it_is_closed_until_it_is_opened() -> None:
    made = ShortWay(Wire())
    made.learn(TEXT)
    assert not made.free
    made.open(empties=True)
    made.learn(TEXT)
    assert made.free
