"""Runs the application under uvicorn, on one port or two, until a signal or a failure."""

import asyncio
import json
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.errors import InvalidValue
from app.lifecycle import Phase
from app.main import Service
from app.settings import ServerSettings, Settings

_BACKLOG = 2048

# nginx and the cloud's load balancers stop at 64 KiB or below.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEAD_S = 30.0

# What was answered when the drain was over may still be on its way to a slow client.
FLUSH_S = 3


class Unsignalled(uvicorn.Server):
    """A server that leaves signals to somebody else."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class TidegateServer(uvicorn.Server):
    """Drains on a signal, and stops by itself when the service has failed.

    A second signal ends at once; `killed_by` is its number if there was anything left to cut.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self.told = False
        self.killed_by: int | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Obey a signal: between two bytecodes of whatever runs, so it only takes notes."""
        if self.told:
            if self.service.lifecycle.phase is not Phase.STOPPED:
                self.killed_by = sig
            self.service.hurry()
            self.should_exit = self.force_exit = True
        self.told = True
        self.service.lifecycle.begin_drain()
        # A service that is not up yet has nothing to drain.
        self.should_exit = self.should_exit or self.service.lifecycle.drain is None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn does, but a signal that was obeyed is not raised again: the exit is clean."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        over = self.service.tick()
        return await super().on_tick(counter) or over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.force_exit:
            self.service.cut()
        await super().shutdown(sockets)
        if self.force_exit:
            # Uvicorn leaves it out, and with it the engine's processes.
            await self.lifespan.shutdown()


class Cork:
    """A transport that keeps a response's head until its body comes: one packet and not two.

    At the latest until the event loop's next turn.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._corked = True

    def write(self, data: bytes) -> None:
        if self._corked:
            self._corked, self._head = False, data
            self._loop.call_soon(self.flush)
            return
        if self._head is not None:
            data, self._head = self._head + data, None
        self._transport.write(data)

    def flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            if not self._transport.is_closing():
                self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class ChunkOutlet:
    """A way into an answer that is sent in chunks, past all that is between it and its route.

    Implements `app.api.disconnect.Client`.
    """

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._callback: Callable[[], None] | None = None

    @property
    def free(self) -> bool:
        """Whether a piece of the body can be sent now, and at once."""
        cycle = self._cycle
        return (
            cycle.response_started
            and cycle.chunked_encoding is True
            and not cycle.flow.write_paused
            and not cycle.disconnected
            and not cycle.response_complete
        )

    def write(self, body: bytes) -> None:
        """Send a piece, which is not empty; only when it is free."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Have the event loop call it if the client goes away before it has its whole answer."""
        self._callback = callback
        if callback is not None:
            # Or nobody would see it go.
            self._cycle.flow.resume_reading()
            if self._cycle.disconnected or self._transport.is_closing():
                asyncio.get_running_loop().call_soon(self.lost)

    def lost(self) -> None:
        """The connection is gone."""
        if self.over:
            return
        # Uvicorn says so only to the last of several that are pipelined.
        self._cycle.disconnected = True
        self._cycle.message_event.set()
        if self._callback is not None:
            self._callback()

    @property
    def over(self) -> bool:
        """Whether the client has its whole answer."""
        return bool(self._cycle.response_complete)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Bounds a request's head in size and time, and refuses in the one error body.

    Nothing above it sees a request before its head is complete.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._outlets: list[ChunkOutlet] = []
        self._await_head()

    def _await_head(self) -> None:
        self._head_bytes: int | None = 0
        self._head_timer = self.loop.call_later(MAX_HEAD_S, self._head_is_late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The request's head is over {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._head_timer.cancel()
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._head_timer.cancel()
        super().on_headers_complete()
        if self.cycle is not None:
            outlet = ChunkOutlet(self.cycle, self.transport)
            self.cycle.transport = Cork(self.transport, self.loop)  # type: ignore[assignment]
            # More than one if requests are pipelined.
            self._outlets = [*(o for o in self._outlets if not o.over), outlet]
            self.scope["state"]["client"] = outlet

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)
        for outlet in self._outlets:
            outlet.lost()
        self._outlets.clear()

    def _head_is_late(self) -> None:
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(InvalidValue(msg).body()).encode()
        lines = (
            "HTTP/1.1 400 Bad Request",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-request-id: {secrets.token_hex(16)}",
            "connection: close",
        )
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.transport.close()


def configuration(settings: Settings, app: FastAPI, lifespan: str = "on") -> uvicorn.Config:
    """Uvicorn's configuration; logs are ours, and so is the access log."""
    return uvicorn.Config(
        app,
        http=BoundedHttpProtocol,
        lifespan=lifespan,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=int(settings.server.keep_alive_s),
        timeout_graceful_shutdown=FLUSH_S,
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the address cannot be had.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The address that means all of them means IPv4's too.
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


async def serve(settings: Settings, app: FastAPI, sockets: Sequence[socket.socket]) -> int | None:
    """Serve until told to stop; the operational port stays open until the end.

    Args:
        settings: the settings.
        app: what `create_app` made.
        sockets: the API's, and the operational routes' when they have a port of their own.

    Returns:
        The number of the signal that ended it before its time; None when it ended in peace.

    """
    server = TidegateServer(configuration(settings, app), app.state.service)
    if app.state.ops is None:
        await server.serve([sockets[0]])
        return server.killed_by
    ops = Unsignalled(configuration(settings, app.state.ops, lifespan="off"))
    beside = asyncio.create_task(ops.serve([sockets[1]]))
    try:
        await server.serve([sockets[0]])
    finally:
        ops.should_exit = True
        await beside
    return server.killed_by


def ports(server: ServerSettings) -> list[int]:
    """The ports to listen on, in the order that `serve` expects."""
    return [server.port] if server.ops_port is None else [server.port, server.ops_port]
