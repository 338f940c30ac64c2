"""Answers as the tests of parameters read them, streamed or not."""

from collections import defaultdict
from typing import Any

from tests.rig.routes import COMPLETIONS, Event, Json, Route, events_of
from tests.rig.service import Service

TOKENS = 24
"""Asked for when nothing is said."""


def ask(service: Service, route: Route = COMPLETIONS, **more: Any) -> Json:
    response = service.client().post(route.path, json={**route.body(tokens=TOKENS), **more})
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def ask_streamed(service: Service, route: Route = COMPLETIONS, **more: Any) -> list[Event]:
    body = {**route.body(tokens=TOKENS), "stream": True, **more}
    response = service.client().post(route.path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def data_of(events: list[Event]) -> list[Json]:
    """The chunks of an OpenAI stream, which has to end with `[DONE]`."""
    assert [event.done for event in events] == [False] * (len(events) - 1) + [True]
    return [event.data for event in events if event.data is not None]


def counts(usage: Json) -> Json:
    """Without the details that are not given, which a stream leaves out."""
    return {name: value for name, value in usage.items() if value is not None}


def text_of(choice: Json) -> str:
    """A whole choice's text, or what a chunk's choice adds to it."""
    message = choice.get("message") or choice.get("delta") or choice
    return str(message.get("text", message.get("content")) or "")


def texts(service: Service, route: Route, *, stream: bool, **more: Any) -> dict[int, str]:
    """The text of each choice."""
    if not stream:
        return {c["index"]: text_of(c) for c in ask(service, route, **more)["choices"]}
    found: dict[int, str] = defaultdict(str)
    for chunk in data_of(ask_streamed(service, route, **more)):
        for choice in chunk["choices"]:
            found[choice["index"]] += text_of(choice)
    return dict(found)


def token_ids(service: Service, prompt: str) -> list[int]:
    answer = service.client().post("/tokenize", json={"model": "tiny", "prompt": prompt})
    tokens: list[int] = answer.raise_for_status().json()["tokens"]
    return tokens
