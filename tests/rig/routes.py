"""The routes that generate, as a client of each sees them: requests, answers, events, failures."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

DONE = "[DONE]"


@dataclass(frozen=True)
class Event:
    """One server-sent event; `data` is None for `[DONE]`."""

    name: str
    data: Json | None

    @property
    def done(self) -> bool:
        return self.data is None


def events_of(text: str) -> list[Event]:
    """The events of a stream's text, which has to be nothing else. Raises ValueError."""
    blocks = text.split("\n\n")
    if blocks.pop():
        raise ValueError(f"the last event is not complete: {text[-200:]!r}")
    return [_event(block) for block in blocks if not block.startswith(":")]


def _event(block: str) -> Event:
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    data = fields.pop("data")
    name = fields.pop("event", "")
    if fields:
        raise ValueError(f"unknown fields in the event {block!r}")
    return Event(name, None if data == DONE else json.loads(data))


@dataclass(frozen=True)
class Route:
    """One generating route: how to ask it for `limit` tokens, and where its answer is.

    Attributes:
        delta: the text that one event adds.
        text: the text of a whole answer.
        error: what an event says of a failure, if it does.
        endings: names of the events that say that all went well.

    """

    name: str
    path: str
    limit: str
    prompt: Callable[[str], Json]
    delta: Callable[[Event], str]
    text: Callable[[Json], str]
    error: Callable[[Event], Json | None]
    endings: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: str = "Once upon a time", tokens: int = 8, **more: Any) -> Json:
        request = {"model": "tiny", "temperature": 0, self.limit: tokens, **self.extra}
        return request | self.prompt(prompt) | more

    def text_of(self, events: Sequence[Event]) -> str:
        return "".join(map(self.delta, events))

    def ended_well(self, events: Sequence[Event]) -> bool:
        """Whether any event says that the answer is complete."""
        return any(event.done or event.name in self.endings for event in events)


def _messages(prompt: str) -> Json:
    return {"messages": [{"role": "user", "content": prompt}]}


def _choice(event: Event, key: str) -> Any:
    choices = (event.data or {}).get("choices") or [{}]
    return choices[0].get(key)


def _top_level_error(event: Event) -> Json | None:
    error: Json | None = (event.data or {}).get("error")
    return error


def _response_error(event: Event) -> Json | None:
    if event.name != "response.failed" or event.data is None:
        return None
    error: Json = event.data["response"]["error"]
    return error


def _message_error(event: Event) -> Json | None:
    return _top_level_error(event) if event.name == "error" else None


def _response_text(body: Json) -> str:
    parts = [part for item in body["output"] for part in item["content"]]
    return "".join(part["text"] for part in parts)


def _message_delta(event: Event) -> str:
    text: str = (event.data or {}).get("delta", {}).get("text", "")
    return text


def _response_delta(event: Event) -> str:
    if event.name != "response.output_text.delta" or event.data is None:
        return ""
    text: str = event.data["delta"]
    return text


COMPLETIONS = Route(
    name="completions",
    path="/v1/completions",
    limit="max_tokens",
    prompt=lambda prompt: {"prompt": prompt},
    delta=lambda event: _choice(event, "text") or "",
    text=lambda body: str(body["choices"][0]["text"]),
    error=_top_level_error,
    extra={"ignore_eos": True},
)
CHAT = Route(
    name="chat_completions",
    path="/v1/chat/completions",
    limit="max_tokens",
    prompt=_messages,
    delta=lambda event: (_choice(event, "delta") or {}).get("content") or "",
    text=lambda body: str(body["choices"][0]["message"]["content"]),
    error=_top_level_error,
    extra={"ignore_eos": True},
)
RESPONSES = Route(
    name="responses",
    path="/v1/responses",
    limit="max_output_tokens",
    prompt=lambda prompt: {"input": prompt},
    delta=_response_delta,
    text=_response_text,
    error=_response_error,
    endings=frozenset({"response.completed", "response.incomplete"}),
)
MESSAGES = Route(
    name="messages",
    path="/v1/messages",
    limit="max_tokens",
    prompt=_messages,
    delta=_message_delta,
    text=lambda body: "".join(part["text"] for part in body["content"]),
    error=_message_error,
    endings=frozenset({"message_delta", "message_stop"}),
)
ROUTES = (COMPLETIONS, CHAT, RESPONSES, MESSAGES)
