"""An OpenAI-compatible server that plays adverse answers with known delays.

Run as `python -m tests.rig.sse_server`; it prints its URL. A request chooses its own script with
a field `script` in its body, see `tests.rig.sse_plays`. `/_timeline` has the latest requests and
when what was really sent.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import select
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httptools

from tests.rig.sse_plays import MODEL, End, Write, answer, asked, document, failure, script

HOST = "127.0.0.1"
REMEMBERED = 2_000
"""Requests in `/_timeline`: the latest."""
ROUTES = {"/v1/completions": False, "/v1/chat/completions": True}
"""Where one can post, and whether it is a chat."""


class ExactSelector(selectors.EpollSelector):
    """Waits to the microsecond; epoll alone waits for whole milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self], [], [], timeout)
            timeout = 0
        return super().select(timeout)


@dataclass
class Timeline:
    """What was really done for one request, on the machine's monotonic clock.

    Attributes:
        headers: of the request, their names in lower case.
        received: its last byte.
        times: just before each chunk with text was written.
        tokens: in each of those chunks.
        ended: nothing more was sent; None while it is answered.
        left: the client closed the connection before that.

    """

    request_id: str
    prompt: str
    headers: dict[str, str]
    received: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ended: float | None = None
    left: bool = False


class Site:
    """What all connections share: the default script, what was asked, and the gauges."""

    def __init__(self, default: Mapping[str, Any]) -> None:
        script(default)  # or the first request would be told of its error
        self.transports: set[asyncio.Transport] = set()
        self.timelines: deque[Timeline] = deque(maxlen=REMEMBERED)
        self.open: dict[str, Timeline] = {}
        self.started_at = time.time()
        self._default = default
        self._numbers = itertools.count()
        self._seen: set[str] = set()
        self._queries = 0
        self._hits = 0

    def answer(
        self, method: bytes, path: str, headers: dict[str, str], body: bytes, now: float
    ) -> tuple[Iterator[Write], End, Timeline | None]:
        """What is sent for a request, and where the sends are to be noted."""
        if method == b"POST" and path in ROUTES:
            return self._generate(ROUTES[path], headers, body, now)
        page = self._page(path) if method == b"GET" else None
        return iter([Write(0.0, page or failure(404, "no such route"))]), End.KEPT, None

    def _generate(
        self, chat: bool, headers: dict[str, str], body: bytes, now: float
    ) -> tuple[Iterator[Write], End, Timeline | None]:
        try:
            content = json.loads(body)
            if content["model"] != MODEL:
                missing = f"The model `{content['model']}` does not exist."
                return iter([Write(0.0, failure(404, missing))]), End.KEPT, None
            request = asked(content, self._default, chat, f"scripted-{next(self._numbers)}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return iter([Write(0.0, failure(400, repr(error)))]), End.KEPT, None
        self._look_up(request.prompt, request.prompt_tokens)
        timeline = Timeline(request.request_id, request.prompt, headers, now)
        self.timelines.append(timeline)
        self.open[request.request_id] = timeline
        return *answer(request), timeline

    def _look_up(self, prompt: str, tokens: int) -> None:
        """In a prefix cache that finds whole prompts only."""
        self._queries += tokens
        self._hits += tokens if prompt in self._seen else 0
        self._seen.add(prompt)

    def _page(self, path: str) -> bytes | None:
        if path == "/health":
            return document(200, b"{}")
        if path == "/v1/models":
            models = [{"id": MODEL, "object": "model", "created": 0, "owned_by": "tests"}]
            return document(200, json.dumps({"object": "list", "data": models}).encode())
        if path == "/metrics":
            return document(200, self._metrics().encode(), kind="text/plain; version=0.0.4")
        if path == "/_timeline":
            timelines = [dataclasses.asdict(timeline) for timeline in self.timelines]
            return document(200, json.dumps(timelines).encode())
        return None

    def _metrics(self) -> str:
        waiting = sum(not timeline.times for timeline in self.open.values())
        label = f'{{model_name="{MODEL}"}}'
        samples = [
            ("process_start_time_seconds", "gauge", "", self.started_at),
            ("vllm:num_requests_running", "gauge", label, len(self.open) - waiting),
            ("vllm:num_requests_waiting", "gauge", label, waiting),
            ("vllm:prefix_cache_queries_total", "counter", label, self._queries),
            ("vllm:prefix_cache_hits_total", "counter", label, self._hits),
        ]
        return "".join(f"# TYPE {n} {kind}\n{n}{labels} {v}\n" for n, kind, labels, v in samples)


class Connection(asyncio.Protocol):
    """Requests one after the other; each write is made at its own time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timeline: Timeline | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._site.transports.add(transport)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.transports.discard(self._transport)
        if self._timer is not None:
            self._timer.cancel()
        if self._timeline is not None:
            self._timeline.left = True
        self._note_end()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    # -- called by the parser

    def on_message_begin(self) -> None:
        assert self._timer is None, "the next request before the end of an answer"
        self._path, self._body = b"", b""
        self._headers: dict[str, str] = {}

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._received = self._loop.time()
        self._keep = self._parser.should_keep_alive()
        method, path = self._parser.get_method(), self._path.decode().partition("?")[0]
        found = self._site.answer(method, path, self._headers, self._body, self._received)
        self._writes, self._end, self._timeline = found
        self._await_next()

    # -- the answer

    def _await_next(self) -> None:
        write = next(self._writes, None)
        if write is not None:
            self._timer = self._loop.call_at(self._received + write.at, self._write, write)
            return
        if self._end is End.LEFT_OPEN:
            return
        self._timer = None
        self._note_end()
        if self._end is End.RESET:
            self._reset()
        elif self._end is End.CLOSED or not self._keep:
            self._transport.close()

    def _write(self, write: Write) -> None:
        if write.texts and self._timeline is not None:
            self._timeline.times.extend([self._loop.time()] * len(write.texts))
            self._timeline.tokens.extend(write.texts)
        if write.data:
            self._transport.write(write.data)
        self._await_next()

    def _note_end(self) -> None:
        if self._timeline is not None:
            self._timeline.ended = self._loop.time()
            del self._site.open[self._timeline.request_id]
            self._timeline = None

    def _reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self._transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger
        )
        self._transport.abort()


def exact_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(ExactSelector())


async def listen(site: Site, port: int) -> tuple[asyncio.Server, str]:
    """A server that accepts connections, and its URL."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(site), HOST, port, backlog=4096)
    return server, f"http://{HOST}:{server.sockets[0].getsockname()[1]}"


@dataclass(frozen=True)
class Here:
    """The server in a thread of this process."""

    url: str
    site: Site


@contextmanager
def serve_here(**default: Any) -> Iterator[Here]:
    """Serve from a thread until the end of the context; the default script by its fields.

    It shares the interpreter with its client: measure times against a process.
    """
    site = Site(default)
    ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        server, url = await listen(site, 0)
        over = asyncio.Event()
        ready.set_result((url, asyncio.get_running_loop(), over))
        await over.wait()
        server.close()
        for transport in site.transports.copy():
            transport.abort()
        await asyncio.sleep(0)

    def run() -> None:
        with asyncio.Runner(loop_factory=exact_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    url, loop, over = ready.result(10)
    try:
        yield Here(url, site)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        assert not thread.is_alive()


async def _serve_forever(default: Mapping[str, Any], port: int) -> None:
    server, url = await listen(Site(default), port)
    print(url, flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.sse_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=json.loads, default={}, help="the default, as JSON")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=exact_loop) as runner, suppress(KeyboardInterrupt):
        runner.run(_serve_forever(arguments.script, arguments.port))


if __name__ == "__main__":
    main()
