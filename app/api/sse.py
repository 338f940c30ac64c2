"""The event grammars of the streamed routes: how each says null usage, failure and end.

A grammar sees whole chunks as vllm's handlers made them, and is the only place that knows what
they look like. Its failure is rendered from our error, never from a handler's.
"""

import json
from typing import Protocol

from app.engine.protocol import Operation
from app.errors import InternalError, InvalidValue, TidegateError

_COMMENT = ":"


class Grammar(Protocol):
    """One route's event grammar."""

    def failure_in(self, chunk: str) -> TidegateError | None:
        """What a handler says in this chunk of a failure of its own."""

    def render(self, chunk: str) -> str:
        """The chunk as the contract wants it."""

    def failure(self, error: TidegateError) -> str:
        """The last thing to send on a stream that failed."""


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
        self.response: dict[str, object] = {}
        self.next_number = 0

    def failure_in(self, chunk: str) -> TidegateError | None:
        failed = chunk.startswith(("event: error\n", "event: response.failed\n"))
        return InternalError() if failed else None

    def render(self, chunk: str) -> str:
        self.next_number += 1
        if chunk.startswith("event: response.created\n"):
            self.response = json.loads(chunk.partition("\ndata: ")[2])["response"]
        return chunk

    def failure(self, error: TidegateError) -> str:
        reason = {"code": "server_error", "message": error.message}
        event = {
            "type": "response.failed",
            "sequence_number": self.next_number,
            "response": {**self.response, "status": "failed", "error": reason},
        }
        return f"event: response.failed\ndata: {json.dumps(event)}\n\n"


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
