"""What a failure has to look like to a client, before the first output and after it."""

import httpx

from tests.rig.routes import MESSAGES, Event, Json, Route, events_of

SECRET = "the reason is 4711"
"""The text of the exceptions that are caused: clients must not see it."""


def assert_refused(response: httpx.Response, route: Route, status: int, code: str) -> Json:
    """A true status and the one JSON body."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body: Json = response.json()
    assert body.pop("type", None) == ("error" if route is MESSAGES else None)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code
    assert SECRET not in response.text
    error: Json = body["error"]
    return error


def assert_cut(route: Route, text: str, code: str) -> list[Event]:
    """Some output, then the error in the route's own grammar, and nothing after it."""
    events = events_of(text)
    *outputs, last = events
    assert route.text_of(outputs)
    assert [event for event in outputs if route.error(event)] == []
    assert not route.ended_well(events)
    error = route.error(last)
    assert error is not None
    assert error["code"] == (code if "param" in error else "server_error")
    assert "abort" not in text.replace("engine_aborted", "")
    assert SECRET not in text
    return events
