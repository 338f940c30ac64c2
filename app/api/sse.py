"""The event grammars of the streamed routes: how each says null usage, failure and end.

A grammar sees whole chunks as vllm's handlers made them, and is the only place that knows what
they look like. Its failure is rendered from our error, never from a handler's.
"""

import json
from typing import Any, Protocol

from app.engine.protocol import Operation
from app.errors import InternalError, InvalidValue, TidegateError

_COMMENT = ":"
# What JSON lets stand in a string, and readers that split a stream as Python splits lines take for
# the end of one: httpx, and what is built on it.
_SEPARATORS = str.maketrans({c: f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"})
_COMPLETED = "event: response.completed\n"


class Grammar(Protocol):
    """One route's event grammar."""

    def failure_in(self, chunk: str) -> TidegateError | None:
        """What a handler says in this chunk of a failure of its own."""

    def render(self, chunk: str) -> str:
        """The chunk as the contract wants it."""

    def failure(self, error: TidegateError) -> str:
        """The last thing to send on a stream that failed."""


def encode(events: str) -> bytes:
    """Events as they are sent: whoever splits lines finds them whole."""
    text = events if events.isascii() else events.translate(_SEPARATORS)
    # A lone surrogate cannot be sent; it is what the engine made of broken bytes.
    return text.encode("utf-8", "replace")


def is_comment(chunk: str) -> bool:
    """Whether a chunk only keeps the connection alive."""
    return chunk.startswith(_COMMENT)


class OpenAIGrammar:
    """Completions and chat: `data: {…}` and a last `data: [DONE]`."""

    def __init__(self, null_usage: bool) -> None:
        self.null_usage = null_usage

    def failure_in(self, chunk: str) -> TidegateError | None:
        if not chunk.startswith('data: {"error":'):
            return None
        error = json.loads(chunk.removeprefix("data: "))["error"]
        if isinstance(error["code"], int) and error["code"] < InternalError.status:
            return InvalidValue(error["message"], error["param"])
        return InternalError()

    def render(self, chunk: str) -> str:
        # Inside a JSON string the quotes would be escaped, so the key can be looked for as text.
        if self.null_usage and chunk.endswith("}\n\n") and '"usage":' not in chunk:
            return f'{chunk[:-3]},"usage":null}}\n\n'
        return chunk

    def failure(self, error: TidegateError) -> str:
        return f"data: {json.dumps(error.body())}\n\n"


class ResponsesGrammar:
    """Responses: named events; `response.failed` carries the response that it ends."""

    def __init__(self) -> None:
        self.response: dict[str, Any] = {}
        self.next_number = 0

    def failure_in(self, chunk: str) -> TidegateError | None:
        failed = chunk.startswith(("event: error\n", "event: response.failed\n"))
        return InternalError() if failed else None

    def render(self, chunk: str) -> str:
        self.next_number += 1
        if chunk.startswith("event: response.created\n"):
            self.response = _data(chunk)["response"]
        return _named_by_status(chunk) if chunk.startswith(_COMPLETED) else chunk

    def failure(self, error: TidegateError) -> str:
        reason = {"code": "server_error", "message": error.message}
        event = {
            "type": "response.failed",
            "sequence_number": self.next_number,
            "response": {**self.response, "status": "failed", "error": reason},
        }
        return _event(event)


def _data(chunk: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(chunk.partition("\ndata: ")[2])
    return data


def _event(data: dict[str, Any]) -> str:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"


def _named_by_status(chunk: str) -> str:
    """The last event under its own name: vllm says `completed` of what was cut short as well.

    https://platform.openai.com/docs/api-reference/responses-streaming/response/incomplete
    """
    event = _data(chunk)
    if event["response"]["status"] != "incomplete":
        return chunk
    return _event({**event, "type": "response.incomplete"})


class MessagesGrammar:
    """Messages: named events; a failure is `event: error`."""

    def failure_in(self, chunk: str) -> TidegateError | None:
        return InternalError() if chunk.startswith("event: error\n") else None

    def render(self, chunk: str) -> str:
        return chunk

    def failure(self, error: TidegateError) -> str:
        return f"event: error\ndata: {json.dumps(error.anthropic_body())}\n\n"


def grammar_of(operation: Operation, null_usage: bool) -> Grammar:
    """The grammar in which an operation streams."""
    if operation is Operation.RESPONSES:
        return ResponsesGrammar()
    if operation is Operation.MESSAGES:
        return MessagesGrammar()
    return OpenAIGrammar(null_usage)
