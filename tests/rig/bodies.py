"""Good request bodies for every route, what to change in them, and what an error must look like."""

from collections.abc import Mapping
from typing import Any

import httpx

from tests.rig.service import SERVED

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"

USER = {"role": "user", "content": "Hello"}
GOOD: Mapping[str, Mapping[str, Any]] = {
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2},
    CHAT: {"messages": [USER], "max_tokens": 2},
    RESPONSES: {"input": "Hello", "max_output_tokens": 2},
    MESSAGES: {"messages": [USER], "max_tokens": 2},
    COUNT_TOKENS: {"messages": [USER]},
    EMBEDDINGS: {"input": "Hello"},
    TOKENIZE: {"prompt": "Hello"},
    DETOKENIZE: {"tokens": [300, 301]},
}
ROUTES = tuple(GOOD)
GENERATIVE = (COMPLETIONS, CHAT, RESPONSES, MESSAGES)
ANTHROPIC = (MESSAGES, COUNT_TOKENS)


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""As a value in `body`: the field is left out. Its name is the same in every process."""

MAX_ERROR_BYTES = 10_000


def body(path: str, **changes: object) -> dict[str, Any]:
    """The route's good body with some fields set or, by ABSENT, left out."""
    whole = {"model": SERVED, "temperature": 0, **GOOD[path], **changes}
    if path not in GENERATIVE and "temperature" not in changes:
        del whole["temperature"]
    return {name: value for name, value in whole.items() if value is not ABSENT}


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of a refused request, after a look at all that the contract says of its shape."""
    assert response.status_code == status, response.text[:500]
    assert len(response.content) < MAX_ERROR_BYTES
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    document = response.json()
    anthropic = response.request.url.path.rstrip("/").endswith(ANTHROPIC)
    assert set(document) == ({"type", "error"} if anthropic else {"error"})
    assert document.get("type") == ("error" if anthropic else None)
    error: dict[str, Any] = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] == code, error
    return error


def text_of(path: str, answer: Mapping[str, Any]) -> str:
    """What the model wrote, in a generative route's answer."""
    if path == COMPLETIONS:
        return "|".join(choice["text"] for choice in answer["choices"])
    if path == CHAT:
        return "|".join(str(choice["message"]["content"]) for choice in answer["choices"])
    if path == RESPONSES:
        parts = (part for item in answer["output"] for part in item.get("content") or ())
        return "|".join(part["text"] for part in parts)
    return "|".join(str(part.get("text")) for part in answer["content"])
