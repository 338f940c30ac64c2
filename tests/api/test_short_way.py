"""Streams whose tokens are pushed, on a real engine: as true and as whole as any other."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.api.push import ShortWay
from app.errors import Draining
from app.permit import Permit
from tests.rig.failures import assert_cut
from tests.rig.inprocess import InProcess
from tests.rig.raw import connect, post
from tests.rig.routes import CHAT, COMPLETIONS, Event, Json, Route, events_of
from tests.rig.service import until

pytestmark = pytest.mark.usefixtures("nothing_left")

LONG = 900
"""Tokens that take seconds: whatever is cut has not ended by itself."""
TOKENS = "vllm:generation_tokens_total"
SEEDED: Json = {"temperature": 1.0, "seed": 3}

each = pytest.mark.parametrize("held", [False], indirect=True, ids=["each"])
plain_route = pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)


@pytest.fixture(params=[False, True], ids=["each", "held"], autouse=True)
def held(request: pytest.FixtureRequest, inside: InProcess, monkeypatch: Any) -> bool:
    """Whether the front end is busy, so that texts wait for each other."""
    busy: bool = request.param
    coalescer = inside.llm.coalescer
    monkeypatch.setattr(coalescer, "on", busy)
    monkeypatch.setattr(type(coalescer), "busy", busy)
    return busy


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that took the short way, as they go."""
    texts: list[str] = []
    push = ShortWay.push

    def noted(self: ShortWay, choice: int, text: str) -> None:
        texts.append(text)
        push(self, choice, text)

    monkeypatch.setattr(ShortWay, "push", noted)
    return texts


# -- what a stream says


def streamed(inside: InProcess, route: Route, body: Json) -> list[Event]:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    response = inside.client().post(route.path, json=body | more)
    assert response.status_code == 200
    return events_of(response.text)


def of_choice(events: list[Event], index: int) -> list[Event]:
    return [e for e in events if e.data and e.data["choices"] and _choice(e)["index"] == index]


def counts(answer: Json | None) -> Json:
    """The usage; without what is not counted, which a stream leaves out."""
    assert answer is not None
    return {name: count for name, count in answer["usage"].items() if count is not None}


def _choice(event: Event) -> Json:
    assert event.data is not None
    choice: Json = event.data["choices"][0]
    return choice


@plain_route
@pytest.mark.parametrize("n", [1, 2])
def test_texts_ends_and_usage_are_those_of_the_whole_answer(
    inside: InProcess, pushed: list[str], held: bool, route: Route, n: int
) -> None:
    body = route.body(tokens=200 if held else 30, n=n, **SEEDED)
    whole = inside.client().post(route.path, json=body).json()
    events = streamed(inside, route, body)
    assert (len(pushed) < 200 * n) if held else (len(pushed) > 30 * n / 2)
    assert pushed
    for index, choice in enumerate(whole["choices"]):
        own = of_choice(events, index)
        assert route.text_of(own) == route.text({"choices": [choice]})
        ends = [_choice(event)["finish_reason"] for event in own]
        assert ends == [None] * (len(own) - 1) + ["length"]
    *_, usage, done = events
    assert done.done
    assert counts(usage.data) == counts(whole)


@plain_route
@pytest.mark.parametrize("kept", [False, True], ids=["left out", "kept"])
def test_a_stop_string_that_spans_tokens_ends_the_stream(
    inside: InProcess, pushed: list[str], route: Route, kept: bool
) -> None:
    client = inside.client()
    text = route.text(client.post(route.path, json=route.body(tokens=200)).json())
    stop = text[len(text) // 2 :][:6]
    body = route.body(tokens=200, stop=stop, include_stop_str_in_output=kept)
    whole = client.post(route.path, json=body).json()
    events = streamed(inside, route, body)
    assert pushed
    assert not any(stop in text for text in pushed)
    assert route.text_of(events) == text.partition(stop)[0] + (stop if kept else "")
    *_, last, usage, _ = events
    assert (_choice(last)["finish_reason"], _choice(last)["stop_reason"]) == ("stop", stop)
    assert counts(usage.data) == counts(whole)


@each
def test_what_looks_like_the_end_of_a_line_is_escaped(inside: InProcess, pushed: list[str]) -> None:
    text = "a\x85b\u2028c\u2029d"
    body = COMPLETIONS.body(tokens=40, structured_outputs={"choice": [text]}, ignore_eos=False)
    response = inside.client().post(COMPLETIONS.path, json=body | {"stream": True})
    assert not set(response.text) & set("\x85\u2028\u2029")
    assert COMPLETIONS.text_of(events_of(response.text)) == text
    assert set("".join(pushed)) & set("\x85\u2028\u2029")


async def test_pushed_tokens_are_charged(inside: InProcess, pushed: list[str]) -> None:
    async with running(inside, pushed, COMPLETIONS.body(tokens=200)) as (permit, answer):
        await answer
    assert permit.output_tokens == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_was_made_for_a_client_that_leaves_is_charged(
    inside: InProcess, stream: bool
) -> None:
    before = inside.metric(TOKENS)
    body = COMPLETIONS.body(tokens=LONG, stream=stream, n=2, **SEEDED)
    async with connect(inside) as connection:
        await connection.send(post(COMPLETIONS.path, body))
        await until(lambda: inside.metric(TOKENS) > before + 20)
        (permit,) = inside.ledger.permits
        await connection.close()
        await until(lambda: not inside.ledger.permits)
    await until(lambda: inside.llm.get_num_unfinished_requests() == 0)
    assert permit.output_tokens == inside.metric(TOKENS) - before


# -- how a stream ends before its time


@asynccontextmanager
async def running(
    inside: InProcess, pushed: list[str], body: Json, route: Route = COMPLETIONS
) -> AsyncIterator[tuple[Permit, "asyncio.Task[str]"]]:
    """A stream that is being pushed: its permit, and its text when it has ended."""
    async with inside.async_client() as client:

        async def read() -> str:
            response = await client.post(route.path, json=body | {"stream": True})
            assert response.status_code == 200
            return response.text

        answer = asyncio.create_task(read())
        await until(lambda: len(pushed) > 5)
        (permit,) = inside.ledger.permits
        yield permit, answer


@plain_route
@pytest.mark.parametrize("n", [1, 2])
async def test_an_error_of_the_output_loop_ends_the_stream(
    inside: InProcess, pushed: list[str], route: Route, n: int
) -> None:
    async def fail() -> None:
        inside.llm.output_processor.propagate_error(RuntimeError("of all requests"))

    body = route.body(tokens=LONG, n=n, **SEEDED)
    async with running(inside, pushed, body, route) as (_, answer):
        await inside.on_loop(fail)
        assert len(assert_cut(route, await answer, "internal_error")) < LONG


@plain_route
async def test_nothing_is_pushed_once_a_request_is_cut(
    inside: InProcess, pushed: list[str], route: Route
) -> None:
    async def cut() -> int:
        permit.cut(Draining("The server is shutting down."))
        return len(pushed)

    body = route.body(tokens=LONG, n=2, **SEEDED)
    async with running(inside, pushed, body, route) as (permit, answer):
        before = await inside.on_loop(cut)
        assert_cut(route, await answer, "draining")
    await until(lambda: inside.llm.get_num_unfinished_requests() == 0)
    assert len(pushed) == before


@plain_route
async def test_a_client_that_leaves_is_pushed_nothing_more(
    inside: InProcess, pushed: list[str], route: Route
) -> None:
    body = route.body(tokens=LONG, stream=True, n=2, **SEEDED)
    async with connect(inside) as connection:
        await connection.send(post(route.path, body))
        await until(lambda: len(pushed) > 5)
        (permit,) = inside.ledger.permits
        await connection.close()
        await until(lambda: not inside.ledger.permits)
        before = len(pushed)
    await until(lambda: inside.llm.get_num_unfinished_requests() == 0)
    assert len(pushed) == before < LONG
    assert permit.finish_reason == "aborted"
    assert permit.live == 0


# -- how fast it is read

BUFFER = 16 * 1024
"""Bytes that the kernel is asked to hold on either side of a connection."""
HIGH_WATER = 64 * 1024
"""Bytes that uvicorn's transport takes before it says that it is full."""


@pytest.fixture
def reader(inside: InProcess) -> Iterator[socket.socket]:
    """A client of a connection that holds little: a reader that stops is soon felt."""
    address = urlsplit(inside.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        client.settimeout(60)
        client.connect((address.hostname, address.port))
        yield client


async def transport_of(inside: InProcess, client: socket.socket) -> Any:
    """The server's side of a connection, which holds little from now on."""

    def found() -> list[Any]:
        connections: Any = list(inside.uvicorn.server_state.connections)
        return [c.transport for c in connections if c.client == client.getsockname()]

    await until(lambda: bool(found()))
    (transport,) = found()
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    return transport


def received(client: socket.socket, size: int) -> list[bytes]:
    """The pieces in which a stream was sent, read `size` bytes at a time to its end."""
    answer = bytearray()
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        read = client.recv(size)
        assert read, "the connection was closed"
        answer += read
    rest, pieces = bytes(answer).partition(b"\r\n\r\n")[2], []
    while rest:
        length, _, rest = rest.partition(b"\r\n")
        pieces.append(rest[: int(length, 16)])
        rest = rest[int(length, 16) + 2 :]
    return pieces[:-1]


@each
async def test_a_reader_that_stops_holds_up_nobody_and_gets_it_all(
    inside: InProcess, pushed: list[str], reader: socket.socket
) -> None:
    body = COMPLETIONS.body(tokens=400, n=2, **SEEDED)
    client = inside.client()
    whole = (await asyncio.to_thread(client.post, COMPLETIONS.path, json=body)).json()
    transport = await transport_of(inside, reader)
    # Each event repeats the request's id.
    request = post(COMPLETIONS.path, body | {"stream": True})
    reader.sendall(request.replace(b"\r\n\r\n", b"\r\nx-request-id: " + b"i" * 128 + b"\r\n\r\n"))
    buffered = 0
    await until(lambda: bool(pushed))
    while inside.llm.get_num_unfinished_requests():
        buffered = max(buffered, transport.get_write_buffer_size())
        short = await asyncio.to_thread(client.post, COMPLETIONS.path, json=COMPLETIONS.body())
        assert short.status_code == 200
        await asyncio.sleep(0.1)
    assert HIGH_WATER < buffered < HIGH_WATER + 1024
    pieces = await asyncio.to_thread(received, reader, BUFFER)
    events = events_of(b"".join(pieces).decode())
    assert events[-1].done
    # What came while nobody read was merged.
    assert len(pushed) < len(events) < 800
    for index, choice in enumerate(whole["choices"]):
        assert COMPLETIONS.text_of(of_choice(events, index)) == choice["text"]


async def test_a_reader_of_single_bytes_gets_whole_events(
    inside: InProcess, pushed: list[str], reader: socket.socket
) -> None:
    reader.sendall(post(COMPLETIONS.path, COMPLETIONS.body(tokens=40, stream=True)))
    pieces = await asyncio.to_thread(received, reader, 1)
    assert pushed
    for piece in pieces:
        assert events_of(piece.decode())
    assert events_of(b"".join(pieces).decode())[-1].done
