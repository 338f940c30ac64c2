"""One test for each route and failure: the status, the body or the event as the contract says."""

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.rig.failures import SECRET, assert_cut, assert_refused
from tests.rig.faults import dead, failing
from tests.rig.inprocess import InProcess
from tests.rig.routes import CHAT, COMPLETIONS, ROUTES, Route, events_of
from tests.rig.service import until

pytestmark = pytest.mark.usefixtures("nothing_left")

FAULTS = [RuntimeError(SECRET), ValueError(SECRET), KeyError(SECRET)]
LONG = 900
"""Tokens that take seconds: whatever is aborted has not ended by itself."""

every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)


# -- refused before the first output


@every_route
@streamed_or_not
def test_a_prompt_that_is_too_long_has_its_true_status(
    inside: InProcess, route: Route, stream: bool
) -> None:
    body = route.body(prompt="word " * 2000, stream=stream)
    error = assert_refused(
        inside.client().post(route.path, json=body), route, 400, "context_length_exceeded"
    )
    assert "1024" in error["message"]


@every_route
@streamed_or_not
def test_too_many_tokens_asked_for_have_their_true_status(
    inside: InProcess, route: Route, stream: bool
) -> None:
    body = route.body(tokens=2000, stream=stream)
    error = assert_refused(
        inside.client().post(route.path, json=body), route, 400, "context_length_exceeded"
    )
    assert "1024" in error["message"]
    assert "2000" in error["message"]


@every_route
@streamed_or_not
def test_an_unknown_model_has_its_true_status(
    inside: InProcess, route: Route, stream: bool
) -> None:
    body = route.body(model="no-such-model", stream=stream)
    assert_refused(inside.client().post(route.path, json=body), route, 404, "model_not_found")


# -- the engine's client raises


@pytest.mark.parametrize("fault", [RuntimeError(SECRET), KeyError(SECRET)], ids=["other", "key"])
@every_route
@streamed_or_not
def test_a_failure_before_the_first_output_is_a_500(
    inside: InProcess, route: Route, stream: bool, fault: Exception
) -> None:
    """Not a ValueError: until then that is how vllm refuses bad values."""
    with failing(inside.llm, "generate", fault, after=0):
        response = inside.client().post(route.path, json=route.body(stream=stream))
    assert_refused(response, route, 500, "internal_error")


@every_fault
@every_route
def test_a_failure_of_a_whole_answer_is_a_500(
    inside: InProcess, route: Route, fault: Exception
) -> None:
    with failing(inside.llm, "generate", fault, after=1):
        response = inside.client().post(route.path, json=route.body())
    assert_refused(response, route, 500, "internal_error")


@every_fault
@every_route
def test_a_failure_after_the_first_output_ends_the_stream(
    inside: InProcess, route: Route, fault: Exception
) -> None:
    with failing(inside.llm, "generate", fault, after=4):
        response = inside.client().post(route.path, json=route.body(tokens=LONG, stream=True))
    assert response.status_code == 200
    assert len(assert_cut(route, response.text, "internal_error")) < LONG / 10


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
@streamed_or_not
def test_one_of_several_choices_fails_and_all_end(
    inside: InProcess, route: Route, stream: bool
) -> None:
    with failing(inside.llm, "generate", RuntimeError(SECRET), after=4 if stream else 0):
        body = route.body(tokens=LONG if stream else 8, stream=stream, n=2, temperature=1)
        response = inside.client().post(route.path, json=body)
    if stream:
        assert len(assert_cut(route, response.text, "internal_error")) < LONG / 10
    else:
        assert_refused(response, route, 500, "internal_error")


@every_route
@streamed_or_not
def test_a_dead_engine_is_a_500_of_its_own(inside: InProcess, route: Route, stream: bool) -> None:
    with failing(inside.llm, "generate", dead(), after=0):
        response = inside.client().post(route.path, json=route.body(stream=stream))
    assert_refused(response, route, 500, "engine_dead")


@every_route
def test_an_engine_that_dies_ends_the_streams(inside: InProcess, route: Route) -> None:
    with failing(inside.llm, "generate", dead(), after=4):
        response = inside.client().post(route.path, json=route.body(tokens=LONG, stream=True))
    assert len(assert_cut(route, response.text, "engine_dead")) < LONG / 10


async def test_failures_are_counted_by_their_reason(inside: InProcess) -> None:
    def count(name: str, **labels: str) -> float:
        return _or_zero(lambda: inside.metric(name, route="completions", **labels))

    before = count("tidegate_finished_sequences_total", reason="error")
    rejected = count("tidegate_rejected_requests_total", reason="internal_error")
    with failing(inside.llm, "generate", RuntimeError(SECRET), after=4):
        body = COMPLETIONS.body(tokens=LONG, stream=True, n=3, temperature=1)
        inside.client().post(COMPLETIONS.path, json=body)
    await until(lambda: not inside.ledger.permits)
    assert count("tidegate_finished_sequences_total", reason="error") == before + 3
    assert count("tidegate_rejected_requests_total", reason="internal_error") == rejected + 1


def _or_zero(read: Callable[[], float]) -> float:
    try:
        return read()
    except KeyError:
        return 0.0


# -- vllm's handler raises


HANDLERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    COMPLETIONS.name: ("openai_serving_completion", "_create_completion_logprobs", {"logprobs": 1}),
    CHAT.name: ("openai_serving_chat", "_create_chat_logprobs", {"logprobs": True}),
}


@every_fault
@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
@streamed_or_not
def test_a_handler_that_trips_over_an_output_is_not_the_requests_fault(
    inside: InProcess,
    monkeypatch: pytest.MonkeyPatch,
    route: Route,
    stream: bool,
    fault: Exception,
) -> None:
    handler, method, more = HANDLERS[route.name]
    engine: Any = inside.composition.engine

    def trip(*args: Any, **kwargs: Any) -> None:
        raise fault

    monkeypatch.setattr(getattr(engine.state, handler), method, trip)
    body = route.body(tokens=LONG if stream else 8, stream=stream, **more)
    response = inside.client().post(route.path, json=body)
    if stream and route is CHAT:
        # The first output is there: it gave the chunk with the role.
        *_, last = events_of(response.text)
        assert (route.error(last) or {}).get("code") == "internal_error"
        assert SECRET not in response.text
    else:
        assert_refused(response, route, 500, "internal_error")


# -- what unmodified clients make of it


def test_the_openai_client_raises(inside: InProcess) -> None:
    client = inside.openai()
    with failing(inside.llm, "generate", RuntimeError(SECRET), after=4):
        completions = client.completions.create(
            model="tiny", prompt="Hello", max_tokens=LONG, stream=True
        )
        with pytest.raises(openai.APIError) as raised:
            list(completions)
        assert raised.value.code == "internal_error"
        chat = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=LONG,
            stream=True,
        )
        with pytest.raises(openai.APIError) as raised:
            list(chat)
        assert raised.value.code == "internal_error"


def test_the_openai_client_gets_a_failed_response(inside: InProcess) -> None:
    with failing(inside.llm, "generate", RuntimeError(SECRET), after=4):
        stream = inside.openai().responses.create(
            model="tiny", input="Hello", max_output_tokens=LONG, stream=True
        )
        events = list(stream)
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert last.response.id == events[0].response.id  # type: ignore[union-attr]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_anthropic_client_raises(inside: InProcess) -> None:
    with failing(inside.llm, "generate", RuntimeError(SECRET), after=4):
        stream = inside.anthropic().messages.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=LONG,
            stream=True,
        )
        with pytest.raises(anthropic.APIError) as raised:
            list(stream)
    assert "Internal error" in str(raised.value)


def test_a_stream_waits_for_its_first_output_only(inside: InProcess) -> None:
    """What is held back until the status is known comes with the first token, not with the last."""
    tokens = 40
    with inside.client().stream(
        "POST", COMPLETIONS.path, json=COMPLETIONS.body(tokens=tokens, stream=True)
    ) as response:
        pieces = list(response.iter_raw())
    assert len(pieces) > tokens / 2
