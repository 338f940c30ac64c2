"""The engine gives requests up: an error for each, streamed or not, running or still waiting."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.rig.failures import assert_cut, assert_refused
from tests.rig.inprocess import InProcess
from tests.rig.routes import COMPLETIONS, ROUTES, Route, events_of
from tests.rig.service import until

pytestmark = pytest.mark.usefixtures("nothing_left")

LONG = 900
"""Tokens that take seconds: whatever is aborted has not ended by itself."""

every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def abort_all(inside: InProcess) -> None:
    """The engine aborts what it has, as it does before its weights are changed."""
    await inside.on_loop(lambda: inside.llm.pause_generation(mode="abort"))
    await inside.on_loop(inside.llm.resume_generation)


@asynccontextmanager
async def running(
    inside: InProcess, count: int, answer: Callable[[httpx.AsyncClient], Awaitable[Any]]
) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """`count` requests that the engine is running when the context is entered."""
    async with inside.async_client() as client:
        tasks = [asyncio.ensure_future(answer(client)) for _ in range(count)]
        await until(lambda: inside.metric("vllm_running_requests") == count)
        yield tasks


async def read_stream(client: httpx.AsyncClient, route: Route, seen: list[str]) -> str:
    body = route.body(tokens=LONG, stream=True)
    async with client.stream("POST", route.path, json=body) as response:
        assert response.status_code == 200
        async for text in response.aiter_text():
            seen.append(text)  # noqa: PERF401 - read while it grows
    return "".join(seen)


@every_route
async def test_an_abort_by_the_engine_is_an_error_in_the_stream(
    inside: InProcess, route: Route
) -> None:
    async with inside.async_client() as client:
        seen: list[list[str]] = [[], []]
        tasks = [asyncio.create_task(read_stream(client, route, pieces)) for pieces in seen]
        await until(lambda: all(_has_text(route, pieces) for pieces in seen), within=60)
        await abort_all(inside)
        for text in await asyncio.wait_for(asyncio.gather(*tasks), 60):
            assert_cut(route, text, "engine_aborted")


def _has_text(route: Route, pieces: Sequence[str]) -> bool:
    whole = "".join(pieces).rpartition("\n\n")[0]
    return bool(whole and route.text_of(events_of(f"{whole}\n\n")))


@every_route
async def test_an_abort_by_the_engine_is_a_500_of_a_whole_answer(
    inside: InProcess, route: Route
) -> None:
    body = route.body(tokens=LONG)
    async with running(inside, 2, lambda client: client.post(route.path, json=body)) as tasks:
        await abort_all(inside)
        for response in await asyncio.gather(*tasks):
            assert_refused(response, route, 500, "engine_aborted")


@streamed_or_not
async def test_a_request_that_still_waits_is_aborted_with_a_status(
    inside: InProcess, stream: bool
) -> None:
    """It had no output yet, so that also a stream has its true status."""
    route = COMPLETIONS
    held = route.body(tokens=LONG)
    async with running(inside, 4, lambda client: client.post(route.path, json=held)) as tasks:
        async with inside.async_client() as client:
            body = route.body(stream=stream)
            waiting = asyncio.create_task(client.post(route.path, json=body))
            await until(lambda: inside.llm.get_num_unfinished_requests() == 5)
            assert inside.metric("vllm_pending_requests") == 1
            await abort_all(inside)
            assert_refused(await waiting, route, 500, "engine_aborted")
        await asyncio.gather(*tasks)
