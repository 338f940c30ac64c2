"""An engine that plays what a real one cannot be made to show on demand, and its server."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from app.engine.protocol import Call, Channel, Document, Operation, Stream
from app.errors import InternalError, InvalidJson, TidegateError
from app.main import create_app
from app.permit import current_permit
from app.server import Unsignalled, configuration, listen
from app.settings import load
from app.workload import Capacity, DecodingStats, InHand, Step, StepRecord
from tests.rig.server import LOOPBACK, free_port

OUTPUT = "<output>"
"""In a script: the engine's first output arrives here."""


class ScriptedEngine:
    """Answers each call with a script of chunks, or with a document."""

    model_name = "scripted"

    def __init__(self) -> None:
        self.script: Sequence[str | Exception] | None = None
        self.dead = False
        self.step_age_s: float | None = None
        self.stopped = False
        self.hand = InHand(0)
        self.step_records: Sequence[StepRecord] = ()
        self.answers = asyncio.Event()

    async def warm_up(self) -> None:
        raise AssertionError("a given engine is warm")

    def get_decoding_stats(self) -> DecodingStats:
        return DecodingStats()

    def in_hand(self) -> Mapping[int, InHand]:
        return {0: self.hand}

    async def ping(self) -> None:
        await self.answers.wait()

    capacity = Capacity(slots=4, step_tokens=1024)

    def on_step(self, listener: Callable[[Step], None]) -> None:
        """It makes no steps."""

    def parse(self, operation: Operation, body: bytes) -> Call:
        try:
            request = json.loads(body)
        except ValueError:
            raise InvalidJson("not JSON") from None
        return Call(operation, request, request.get("model"), 1, 1, False, False, None, None, False)

    async def run(
        self, call: Call, request: Request, channel: Channel | None = None
    ) -> Document | Stream:
        permit = current_permit.get()
        assert permit is not None
        if self.script is None:
            permit.output()
            return Document(b'{"answer": 42}')
        return Stream(self._play(self.script))

    async def _play(self, script: Sequence[str | Exception]) -> AsyncGenerator[str, None]:
        permit = current_permit.get()
        assert permit is not None
        for step in script:
            await asyncio.sleep(0)
            if isinstance(step, Exception):
                raise step
            if step == OUTPUT:
                permit.output()
            else:
                yield step

    def translate(self, error: Exception) -> TidegateError:
        return error if isinstance(error, TidegateError) else InternalError()

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "scripted"}, {"id": "org/with-slash"}]}

    def schemas(self) -> Mapping[Operation, dict[str, Any]]:
        return {
            Operation.CHAT: {
                "type": "object",
                "properties": {"messages": {"$ref": "#/components/schemas/Messages"}},
                "$defs": {"Messages": {"type": "array"}},
            }
        }

    def shutdown(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.stopped = True


class Scripted:
    """The application on a scripted engine, served on loopback ports."""

    def __init__(self, engine: ScriptedEngine, url: str, ops_url: str) -> None:
        self.engine = engine
        self.url = url
        self.ops_url = ops_url


@contextmanager
def scripted(*settings: str, engine: ScriptedEngine | None = None) -> Iterator[Scripted]:
    """Serve until the end of the context; `--server.ops_port=0` asks for a free second port."""
    port, ops_port = free_port(), free_port()
    given = [s if s != "--server.ops_port=0" else f"--server.ops_port={ops_port}" for s in settings]
    effective = load([f"--server.port={port}", f"--server.host={LOOPBACK}", *given], environ={})
    engine = engine or ScriptedEngine()
    api = create_app(effective, engine)
    servers = [Unsignalled(configuration(effective, api))]
    sockets = [listen(LOOPBACK, port)]
    if api.state.ops is not None:
        servers.append(Unsignalled(configuration(effective, api.state.ops, lifespan="off")))
        sockets.append(listen(LOOPBACK, ops_port))
    threads = [
        threading.Thread(target=server.run, args=([sock],))
        for server, sock in zip(servers, sockets, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        ops_url = f"http://{LOOPBACK}:{ops_port if len(servers) > 1 else port}"
        yield Scripted(engine, f"http://{LOOPBACK}:{port}", ops_url)
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
