"""An engine that hangs, and one that dies: what the probes say, and what the clients get."""

import asyncio
import os
import signal
import time

import httpx
import pytest

from tests.conftest import StartService
from tests.rig.service import Service, Stream, hold, total, until_metrics

STALL_S, DEAD_S = 2.0, 6.0
SLOTS = 10


@pytest.fixture(scope="module")
def service(start_module_service: StartService) -> Service:
    """Its last test kills it."""
    return start_module_service(
        engine__max_model_len=8192,
        engine__max_num_seqs=SLOTS,
        lifecycle__stall_timeout_s=STALL_S,
        lifecycle__dead_after_s=DEAD_S,
    )


async def until_status(client: httpx.AsyncClient, path: str, status: int, within: float) -> float:
    """Seconds until a probe has that status."""
    began = time.monotonic()
    while (await client.get(path)).status_code != status:
        assert time.monotonic() < began + within, path
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_an_engine_that_hangs_is_noticed_and_comes_back(service: Service) -> None:
    async with service.async_client() as client, hold(service, 2, max_tokens=2000) as streams:
        with service.engine_stopped():
            waited = await until_status(client, "/readyz", 503, within=STALL_S + 2)
            assert waited > STALL_S / 2
            assert (await client.get("/readyz")).json()["error"]["code"] == "stalled"
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/livez")).status_code == 200
            seen = await asyncio.to_thread(service.metrics)
            assert total(seen, "tidegate_engine_stalled_seconds") >= STALL_S
        await until_status(client, "/readyz", 200, within=5)
        await streams.finish()
        assert [stream.complete for stream in streams] == [True, True]


async def test_clients_that_leave_a_hanging_engine_do_not_hide_it(service: Service) -> None:
    async with service.async_client() as client:
        with service.engine_stopped():
            async with hold(service, 2, started=0) as streams:
                await asyncio.sleep(0.5)
                streams.close()
            await until_status(client, "/readyz", 503, within=STALL_S + 2)
        await until_status(client, "/readyz", 200, within=5)


async def test_one_that_hangs_for_good_is_not_alive(service: Service) -> None:
    async with service.async_client() as client, hold(service, 1, max_tokens=2000) as streams:
        with service.engine_stopped():
            waited = await until_status(client, "/livez", 503, within=DEAD_S + 2)
            assert waited > DEAD_S / 2
        await until_status(client, "/livez", 200, within=5)
        await streams.finish()
        assert streams[0].complete


async def test_a_dead_engine_ends_all_requests_and_the_service(service: Service) -> None:
    whole = {"model": "tiny", "prompt": "hello", "max_tokens": 8}
    async with (
        hold(service, 2 * SLOTS - 2, started=SLOTS) as streams,
        service.async_client() as http,
    ):
        posts = (http.post("/v1/completions", json=whole) for _ in range(2))
        tasks = [asyncio.create_task(post) for post in posts]
        await until_metrics(service, lambda s: total(s, "vllm_pending_requests") == SLOTS)
        killed = time.monotonic()
        os.kill(service.engine_pids()[0], signal.SIGKILL)
        await streams.finish(within=5)
        answers = await asyncio.gather(*tasks)
        assert time.monotonic() < killed + 5
        assert [told(stream) for stream in streams] == ["engine_dead"] * (2 * SLOTS - 2)
        assert [answer.status_code for answer in answers] == [500, 500]
        assert {answer.json()["error"]["code"] for answer in answers} == {"engine_dead"}
    assert await asyncio.to_thread(service.wait, 15) not in (0, None)
    assert service.left_after(5) == []


def told(stream: Stream) -> str:
    """The code of a stream's error, in it or instead of it; no fake success."""
    assert not stream.complete
    error = httpx.Response(500, text=stream.data[-1] if stream.data else stream.body).json()
    assert stream.status == (200 if stream.data else 500)
    code: str = error["error"]["code"]
    return code
