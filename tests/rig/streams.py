"""Slow streams that occupy the engine, and waiting for what they bring about."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from tests.rig.samples import Samples, parsed, shown
from tests.rig.server import Server


@dataclass
class Stream:
    """One stream of `hold`, as far as it has come."""

    status: int | None = None
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    data: list[str] = field(default_factory=list)
    """The payloads of the `data:` lines, `[DONE]` included."""
    body: str = ""
    """The answer when it is no stream: a refusal, for example."""
    error: httpx.TransportError | None = None
    ended: bool = False

    @property
    def started(self) -> bool:
        return bool(self.data)

    @property
    def complete(self) -> bool:
        return self.data[-1:] == ["[DONE]"]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(data) for data in self.data if data != "[DONE]"]


class Held(list[Stream]):
    """The streams that `hold` keeps open."""

    def __init__(self, streams: Sequence[Stream], tasks: Sequence[asyncio.Task[None]]) -> None:
        super().__init__(streams)
        self.tasks = tasks
        self.may_end = False

    async def finish(self, within: float = 120.0) -> Self:
        """Waits until every stream has ended by itself, well or not."""
        self.may_end = True
        await asyncio.wait_for(asyncio.gather(*self.tasks), within)
        return self

    def close(self) -> None:
        """Drops all connections, as clients do that go away."""
        self.may_end = True
        for task in self.tasks:
            task.cancel()


@asynccontextmanager
async def hold(
    server: Server,
    count: int,
    *,
    started: int | None = None,
    max_tokens: int | None = None,
    headers: Mapping[str, str] | None = None,
    **body: object,
) -> AsyncIterator[Held]:
    """Opens `count` streams that run until the end of the context, or of the model's length.

    Enters when `started` of them (all, if not given) have had a first token. How long one lasts
    depends on `engine.max_model_len`: some 300 tokens a second. One that has ended before its time
    fails the test, unless `finish` or `close` was called or `may_end` set.
    """
    body = {
        "model": "tiny",
        "ignore_eos": True,
        "max_tokens": max_tokens or server.max_model_len - 64,
    } | body
    async with server.async_client() as client:
        streams = [Stream() for _ in range(count)]
        tasks = [
            asyncio.create_task(_follow(client, stream, headers, {"prompt": f"No. {i}"} | body))
            for i, stream in enumerate(streams)
        ]
        held = Held(streams, tasks)
        try:
            wanted = count if started is None else started
            await until(lambda: sum(s.started for s in held) >= wanted, within=60.0)
            yield held
            if not held.may_end and any(stream.ended for stream in held):
                raise AssertionError(f"held streams have ended: {[_brief(s) for s in held]}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until(
    predicate: Callable[[], bool], within: float = 10.0, every: float = 0.02, why: str = ""
) -> None:
    """Returns once the predicate holds. Raises AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:.1f} s {why}".rstrip())
        await asyncio.sleep(every)


async def scrape(client: httpx.AsyncClient, server: Server) -> Samples:
    """In the loop that reads the streams.

    A thread beside it gets its turn seconds later when both have little of a busy machine.
    """
    response = await client.get(f"{server.ops_url}/metrics")
    return parsed(response.raise_for_status().text)


async def until_metrics(
    server: Server, predicate: Callable[[Samples], bool], within: float = 10.0, every: float = 0.05
) -> Samples:
    """Scrapes until the predicate holds; returns that scrape. Raises AssertionError."""
    deadline = time.monotonic() + within
    async with server.async_client() as client:
        while not predicate(samples := await scrape(client, server)):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not within {within:.1f} s; the last scrape:\n{shown(samples)}"
                )
            await asyncio.sleep(every)
    return samples


async def _follow(
    client: httpx.AsyncClient,
    stream: Stream,
    headers: Mapping[str, str] | None,
    body: Mapping[str, object],
) -> None:
    request = client.build_request(
        "POST", "/v1/completions", json={**body, "stream": True}, headers=headers
    )
    try:
        await _read(await client.send(request, stream=True), stream)
    except httpx.TransportError as error:
        stream.error = error
    stream.ended = True


async def _read(response: httpx.Response, stream: Stream) -> None:
    stream.status, stream.headers = response.status_code, response.headers
    try:
        if response.status_code != 200:
            stream.body = (await response.aread()).decode()
            return
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                stream.data.append(line.removeprefix("data: "))
    finally:
        await response.aclose()


def _brief(stream: Stream) -> str:
    last = stream.body or (stream.data or [""])[-1]
    return f"{stream.status} {len(stream.data)} events {last[:200]} {stream.error or ''}"
