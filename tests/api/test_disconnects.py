"""Clients that go away, and what the gauges say of it: counted from acceptance to the end."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.rig.raw import Connection, connect, post
from tests.rig.routes import CHAT, COMPLETIONS, ROUTES, Route
from tests.rig.service import Samples, Service, hold, total, until, until_metrics

SLOTS = 4
LONG = 900
QUEUED_PROMPT = [[7] * 500]
GAUGES = (
    "vllm_pending_requests",
    "vllm_running_requests",
    "vllm_pending_tokens",
    "vllm_kv_cache_usage_percent",
    "tidegate_demand_sequences",
)

every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def value(samples: Samples, name: str, **labels: str) -> float:
    """As `total`, but a series that nothing has been counted in yet is 0."""
    try:
        return total(samples, name, **labels)
    except KeyError:
        return 0.0


def ended(samples: Samples, reason: str) -> float:
    return value(samples, "tidegate_finished_sequences_total", reason=reason)


def idle(samples: Samples) -> bool:
    return all(total(samples, name) == 0 for name in GAUGES)


@pytest.fixture(autouse=True)
async def before(service: Service) -> AsyncIterator[Samples]:
    """The counters before the test; after it the service is idle, by every gauge."""
    yield await until_metrics(service, idle)
    await until_metrics(service, idle)
    await until_metrics(service, lambda samples: total(samples, "vllm:num_requests_running") == 0)
    await until_metrics(service, lambda samples: total(samples, "vllm:num_requests_waiting") == 0)


async def generated(service: Service) -> float:
    """The engine's tokens, once they have stopped growing."""
    last = -1.0
    while (now := service.metric("vllm:generation_tokens_total")) != last:
        last = now
        await asyncio.sleep(0.3)
    return now


@every_route
@streamed_or_not
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_a_client_that_leaves_frees_its_slot(
    service: Service, before: Samples, route: Route, stream: bool, reset: bool
) -> None:
    tokens = total(before, "vllm:generation_tokens_total")
    async with connect(service) as connection:
        await connection.send(post(route.path, route.body(tokens=LONG, stream=stream)))
        if stream:
            status, _ = await connection.head()
            assert status == 200
        await until_metrics(service, lambda s: total(s, "vllm_running_requests") == 1)
        await connection.close(reset=reset)
        after = await until_metrics(service, idle)
    assert await generated(service) - tokens < LONG / 2
    assert ended(after, "aborted") == ended(before, "aborted") + 1
    assert ended(after, "length") == ended(before, "length")


@every_route
@streamed_or_not
async def test_a_client_that_leaves_while_queued_never_starts(
    service: Service, before: Samples, route: Route, stream: bool
) -> None:
    prompts = total(before, "vllm:prompt_tokens_total")
    body = route.body(prompt="word " * 200, stream=stream)
    async with hold(service, SLOTS, max_tokens=LONG) as held, connect(service) as connection:
        await connection.send(post(route.path, body))
        await until_metrics(service, lambda s: total(s, "vllm_pending_requests") == 1)
        await connection.close()
        after = await until_metrics(service, lambda s: total(s, "vllm_pending_requests") == 0)
        assert total(after, "vllm_running_requests") == SLOTS
        assert ended(after, "aborted") == ended(before, "aborted") + 1
        assert not any(stream.ended for stream in held)
        held.close()
        await until_metrics(service, idle)
    # The next request would be after it in the queue.
    answer = await asyncio.to_thread(
        service.client().post, COMPLETIONS.path, json=COMPLETIONS.body(tokens=1)
    )
    assert answer.status_code == 200
    assert service.metric("vllm:prompt_tokens_total") - prompts < 200


async def test_one_of_several_prompts_and_samples(service: Service, before: Samples) -> None:
    body = COMPLETIONS.body(tokens=LONG, stream=True, n=2, temperature=1)
    async with connect(service) as connection:
        await connection.send(post(COMPLETIONS.path, body | {"prompt": ["a", "b", "c"]}))
        samples = await until_metrics(service, lambda s: total(s, "vllm_running_requests") == SLOTS)
        assert total(samples, "vllm_pending_requests") == 6 - SLOTS
        await connection.close()
        after = await until_metrics(service, idle)
    assert ended(after, "aborted") == ended(before, "aborted") + 6


async def test_a_beam_search_is_ended(service: Service, before: Samples) -> None:
    body = COMPLETIONS.body(tokens=LONG, use_beam_search=True, n=2)
    tokens = total(before, "vllm:generation_tokens_total")
    async with connect(service) as connection:
        await connection.send(post(COMPLETIONS.path, body))
        grown = "vllm:generation_tokens_total"
        # The engine's first logprobs compile a kernel, which takes it many seconds.
        await until_metrics(service, lambda s: total(s, grown) > tokens, within=100)
        await connection.close()
        after = await until_metrics(service, idle)
    assert await generated(service) - tokens < LONG / 2
    assert ended(after, "aborted") == ended(before, "aborted") + 2


async def test_aborted_streams_are_counted(service: Service, before: Samples) -> None:
    async with hold(service, 5, started=SLOTS, max_tokens=LONG) as held:
        held.close()
        after = await until_metrics(service, idle)
    assert ended(after, "aborted") == ended(before, "aborted") + 5


async def test_a_hundred_disconnects(service: Service, before: Samples) -> None:
    dice = random.Random(0)
    gate = asyncio.Semaphore(10)

    async def come_and_go(number: int) -> None:
        route = ROUTES[number % len(ROUTES)]
        body = route.body(prompt=f"No. {number}", tokens=LONG, stream=number % 3 > 0)
        async with gate, connect(service) as connection:
            await connection.send(post(route.path, body))
            await asyncio.sleep(dice.uniform(0, 0.3))
            await connection.close(reset=dice.random() < 0.5)

    tasks = [asyncio.create_task(come_and_go(number)) for number in range(100)]
    while not all(task.done() for task in tasks):
        samples = await asyncio.to_thread(service.metrics)
        assert all(total(samples, name) >= 0 for name in GAUGES)
        assert_adds_up(samples)
    await asyncio.gather(*tasks)
    after = await until_metrics(service, idle)
    gone = ended(after, "aborted") - ended(before, "aborted")
    refused_unread = 100 - gone
    assert 80 <= gone <= 100, f"{refused_unread} left before they were accepted"


# -- the gauges while all this happens


def assert_adds_up(samples: Samples) -> None:
    accepted = value(samples, "tidegate_accepted_sequences_total")
    finished = value(samples, "tidegate_finished_sequences_total")
    pending = total(samples, "vllm_pending_requests")
    running = total(samples, "vllm_running_requests")
    assert pending + running == accepted - finished
    assert 0 <= running <= SLOTS
    assert pending >= 0
    assert total(samples, "tidegate_demand_sequences") == pending + running


def _mixed(route: Route, number: int) -> dict[str, Any]:
    more: dict[str, Any] = {"stream": number % 2 == 0}
    if route in (COMPLETIONS, CHAT):
        more |= {"n": number % 3 + 1, "temperature": 1}
    body = route.body(prompt=f"No. {number}", tokens=10 + number % 70, **more)
    return body | ({"prompt": ["a", "b"]} if route is COMPLETIONS and number % 5 == 0 else {})


async def test_pending_and_running_add_up_at_every_scrape(service: Service) -> None:
    """Under a mixed load: all routes, several prompts and samples, bad requests, disconnects."""
    numbers = itertools.count()
    async with service.async_client() as client, AsyncExitStack() as stack:

        async def load() -> None:
            for number in numbers:
                route = ROUTES[number % len(ROUTES)]
                if number % 11 == 0:
                    await _leave(service, route)
                elif number % 7 == 0:
                    await client.post(route.path, json=route.body(prompt="word " * 2000))
                else:
                    response = await client.post(route.path, json=_mixed(route, number))
                    assert response.status_code == 200

        tasks = [asyncio.create_task(load()) for _ in range(8)]
        stack.push_async_callback(_end, tasks)
        seen = []
        for _ in range(50):
            samples = await asyncio.to_thread(service.metrics)
            assert_adds_up(samples)
            seen.append(total(samples, "vllm_pending_requests"))
            await asyncio.sleep(0.02)
        assert not any(task.done() for task in tasks)
    assert max(seen) > 0


async def _leave(service: Service, route: Route) -> None:
    async with connect(service) as connection:
        await connection.send(post(route.path, route.body(tokens=LONG, stream=True)))
        await asyncio.sleep(0.05)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [r for r in results if not isinstance(r, asyncio.CancelledError | type(None))]
    assert failures == []


async def test_twenty_at_once_are_all_counted(service: Service, before: Samples) -> None:
    request = post(COMPLETIONS.path, COMPLETIONS.body(tokens=LONG))
    async with AsyncExitStack() as stack:
        opened: list[Connection] = [
            await stack.enter_async_context(connect(service)) for _ in range(20)
        ]
        for connection in opened:
            connection.writer.write(request)
        await asyncio.sleep(0.05)
        samples = await asyncio.to_thread(service.metrics)
    assert total(samples, "vllm_pending_requests") + total(samples, "vllm_running_requests") == 20
    accepted = "tidegate_accepted_sequences_total"
    assert total(samples, accepted) == value(before, accepted) + 20


async def test_pending_tokens_are_those_of_the_queued_prompts(service: Service) -> None:
    lengths = (100, 200, 300)
    async with hold(service, SLOTS, max_tokens=LONG) as held, service.async_client() as client:
        bodies = [COMPLETIONS.body(tokens=1) | {"prompt": [9] * length} for length in lengths]
        posts = [client.post(COMPLETIONS.path, json=body) for body in bodies]
        tasks = [asyncio.ensure_future(work) for work in posts]
        samples = await until_metrics(service, lambda s: total(s, "vllm_pending_requests") == 3)
        assert total(samples, "vllm_pending_tokens") == sum(lengths)
        held.close()
        responses: list[httpx.Response] = await asyncio.gather(*tasks)
    assert [response.status_code for response in responses] == [200] * 3


async def test_a_held_stream_is_running_until_it_is_closed(service: Service) -> None:
    """What `hold` relies on: the gauges follow the connections one by one."""
    async with hold(service, 3, max_tokens=LONG) as held:
        assert service.metric("vllm_running_requests") == 3
        assert service.metric("vllm_kv_cache_usage_percent") > 0
        held.tasks[0].cancel()
        held.may_end = True
        await until(lambda: service.metric("vllm_running_requests") == 2)
