"""The end of a service whose engine is no help: signals, cuts and what comes too late."""

import asyncio
import gc
import json
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.engine.protocol import Call, Channel, Document, Stream
from app.errors import InternalError
from app.lifecycle import Phase, Stage
from app.main import Service, create_app
from app.server import Cork, TidegateServer, configuration, listen
from app.settings import load
from app.workload import InHand
from tests.rig.raw import Connection, post_head
from tests.rig.scripted import ScriptedEngine
from tests.rig.server import LOOPBACK, free_port
from tests.rig.streams import until

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
ASKED = {"messages": [{"role": "user", "content": "Hello"}]}


class Helpless(ScriptedEngine):
    """Never answers, and does not end by itself when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.cancelled = 0
        self.killed = threading.Event()

    async def run(
        self, call: Call, request: Request, channel: Channel | None = None
    ) -> Document | Stream:
        self.running += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError

    def shutdown(self) -> None:
        self.killed.wait(60)

    def kill(self) -> None:
        self.killed.set()


class Running:
    """A server in the test's own loop; signals are those that the test hands to it."""

    def __init__(self, *settings: str) -> None:
        self.port = free_port()
        chosen = [f"--server.port={self.port}", f"--server.host={LOOPBACK}", *settings]
        self.engine = Helpless()
        effective = load(chosen, environ={})
        api = create_app(effective, self.engine)
        self.service: Service = api.state.service
        self.server = TidegateServer(configuration(effective, api), self.service)
        self.task = asyncio.create_task(self.server.serve([listen(LOOPBACK, self.port)]))

    def signal(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)

    async def ended(self, within: float) -> None:
        await asyncio.wait_for(asyncio.shield(self.task), within)


@asynccontextmanager
async def running(*settings: str) -> AsyncIterator[tuple[Running, httpx.AsyncClient]]:
    here = Running(*settings)
    url = f"http://{LOOPBACK}:{here.port}"
    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            await until(lambda: here.server.started)
            yield here, client
    finally:
        here.engine.killed.set()
        here.signal()
        here.signal()
        await here.ended(10)


async def asked(here: Running, client: httpx.AsyncClient) -> "asyncio.Task[httpx.Response]":
    """A request that the engine has."""
    before = here.engine.running
    task = asyncio.create_task(client.post(CHAT, json=ASKED))
    await until(lambda: here.engine.running > before)
    return task


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_an_engine_that_dies_without_a_word_ends_what_it_had() -> None:
    async with running() as (here, client):
        waiting = [await asked(here, client) for _ in range(3)]
        here.engine.dead = True
        assert [code_of(await task) for task in waiting] == [(500, "engine_dead")] * 3
        assert here.service.lifecycle.failed


async def test_a_second_signal_cuts_and_ends_at_once() -> None:
    async with running() as (here, client):
        waiting = await asked(here, client)
        here.signal()
        here.signal()
        assert code_of(await waiting) == (503, "draining")
        await here.ended(5)
        assert here.engine.killed.is_set()
        assert here.server.killed_by == signal.SIGTERM


async def test_a_second_signal_leaves_an_engine_that_is_ending_no_time() -> None:
    async with running("--lifecycle.drain_settle_s=0") as (here, _):
        here.signal()
        await until(lambda: here.service.lifecycle.phase is Phase.STOPPED)
        assert not here.engine.killed.is_set()
        here.signal()
        await here.ended(5)
        assert here.engine.killed.is_set()
        assert here.server.killed_by is None  # there was nothing left to cut


@pytest.mark.parametrize("sent", [0, 10])
async def test_a_request_whose_body_does_not_come_is_cut(sent: int) -> None:
    limits = ("--lifecycle.drain_settle_s=0", "--lifecycle.drain_timeout_s=0.3")
    content = json.dumps(ASKED).encode()
    async with running(*limits) as (here, _):
        upload = Connection(*await asyncio.open_connection(LOOPBACK, here.port))
        await upload.send(post_head(CHAT, len(content)) + content[:sent])
        await until(lambda: here.service.lifecycle.in_flight == 1)
        here.signal()
        status, headers = await upload.head()
        assert (status, headers["connection"]) == (503, "close")
        assert json.loads(await upload.rest())["error"]["code"] == "draining"
        await upload.close()
        assert here.engine.running == 0


def cycles() -> int:
    """Requests of which uvicorn's object still exists."""
    return sum(type(each) is RequestResponseCycle for each in gc.get_objects())


async def test_no_request_is_left_to_the_garbage_collector() -> None:
    """Answered, refused, failed in the engine and left by the client: all go when they end."""
    async with running() as (here, client):
        gc.collect()
        before = cycles()  # of servers of other tests
        gc.disable()
        try:
            for _ in range(5):
                await client.get("/version")
                await client.post(CHAT, content=b"{", headers=JSON)
                here.service.lifecycle.phase = Phase.STARTING
                assert (await client.post(CHAT, json=ASKED)).status_code == 503
                here.service.lifecycle.phase = Phase.READY
                left = await asked(here, client)
                left.cancel()
                failed = await asked(here, client)
                for permit in list(here.service.ledger.permits):
                    permit.cut(InternalError())
                assert (await failed).status_code == 500
            await until(lambda: here.service.lifecycle.in_flight == 0)
            # A connection keeps its last one.
            await until(lambda: cycles() <= before + 1, within=2.0)
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("", CHAT, 400),
        ("/llm", CHAT, 400),
        ("/llm", f"/llm{CHAT}", 400),
        # What a router takes for the path, whatever is a better reading.
        ("/", CHAT, 400),
        ("", f"{CHAT}%0A", 400),
        ("", f"{CHAT}/", 404),
        ("/llm", f"/lm{CHAT}", 404),
    ],
)
async def test_whatever_is_in_front_of_a_path(root: str, path: str, status: int) -> None:
    async with running(f"--server.root_path={root}") as (_, client):
        answer = await client.post(path, content=b"{", headers=JSON)
        assert answer.status_code == status
        assert answer.json()["error"]["code"]
        assert (await client.get(path)).status_code == (405 if status == 400 else 404)


@pytest.mark.parametrize(("phase", "alive"), [(Phase.STARTING, True), (Phase.READY, False)])
async def test_a_first_step_may_take_its_time(phase: Phase, alive: bool) -> None:
    async with running("--lifecycle.stall_timeout_s=0.1", "--lifecycle.dead_after_s=0.2") as (
        here,
        client,
    ):
        here.service.lifecycle.phase, here.service.lifecycle.stage = phase, Stage.WARMING
        here.engine.hand = InHand(1)
        await asyncio.sleep(0.6)
        assert ((await client.get("/livez")).status_code == 200) is alive


async def test_a_drain_tells_every_five_seconds_what_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="app")
    settings = ("--lifecycle.drain_settle_s=3", "--lifecycle.drain_timeout_s=60")
    async with running(*settings) as (here, client):
        waiting = await asked(here, client)
        lifecycle = here.service.lifecycle
        began = lifecycle.clock()
        for elapsed in range(13):
            lifecycle.clock = lambda now=began + elapsed: now  # type: ignore[misc]
            lifecycle.begin_drain()
            here.service.tick()
        here.service.cut()
        assert code_of(await waiting) == (503, "draining")
    told = [r.__dict__["fields"] for r in caplog.records if r.getMessage() == "draining"]
    assert [(t["step"], t["in_flight"], t["seconds_left"]) for t in told[:3]] == [
        ("settle", 1, 63.0),
        ("finish", 1, 58.0),
        ("finish", 1, 53.0),
    ]


# -- the client's side


@pytest.mark.parametrize("requests", [1, 3])
async def test_a_client_that_leaves_ends_its_work(
    requests: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Pipelined requests wait for the first, and end with it."""
    body = json.dumps(ASKED).encode()
    async with running() as (here, _):
        client = Connection(*await asyncio.open_connection(LOOPBACK, here.port))
        await client.send((post_head(CHAT, len(body)) + body) * requests)
        await until(lambda: here.engine.running == 1)
        await client.close()
        await until(lambda: here.engine.cancelled == 1)
        await until(lambda: not here.service.ledger.permits)
        assert here.engine.running == 1
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said.append(bytes(data))

    def close(self) -> None:
        self.said.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.said


async def test_a_head_goes_with_its_body_and_alone_when_none_comes() -> None:
    loop, transport = asyncio.get_running_loop(), Transport()
    cork = Cork(transport, loop)
    for data in (b"head ", b"body", b"more"):
        cork.write(data)
    assert transport.said == [b"head body", b"more"]
    alone = Cork(transport, loop)
    alone.write(b"head")
    assert transport.said[2:] == []
    await asyncio.sleep(0)
    assert transport.said[2:] == [b"head"]
    closed, gone = Cork(transport, loop), Cork(transport, loop)
    gone.write(b"of a client that has gone")
    closed.write(b"last")
    closed.close()
    await asyncio.sleep(0)
    assert transport.said[3:] == [b"last", "closed"]
