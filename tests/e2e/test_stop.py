"""A stop, with real signals: what is in flight ends properly, and no process is left."""

import asyncio
import json
import signal
import sys
import time

import httpx

from tests.conftest import StartService
from tests.rig.raw import connect, post_head
from tests.rig.server import ROOT
from tests.rig.service import Held, Service, hold, total, until, until_metrics

LONG = 3000
SETTLE_S = 2.0


def finish_reasons(streams: Held) -> list[str]:
    return [stream.events()[-1]["choices"][0]["finish_reason"] for stream in streams]


async def ended(service: Service, status: int, within: float = 60) -> None:
    """Waits for the exit status, and for every process to be gone."""
    assert await asyncio.to_thread(service.wait, within) == status
    assert service.left_after(10) == []
    assert "Traceback" not in service.log_text()
    assert "resource_tracker" not in service.log_text()


async def complete(client: httpx.AsyncClient, max_tokens: int = 1) -> httpx.Response:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True}
    return await client.post("/v1/completions", json=body)


async def reason_not_ready(client: httpx.AsyncClient) -> str:
    while (answer := await client.get("/readyz")).status_code == 200:
        pass
    code: str = answer.json()["error"]["code"]
    return code


async def served_until_refused(client: httpx.AsyncClient) -> int:
    """How many requests are served before one is refused; each is told to go elsewhere."""
    served = 0
    while (answer := await complete(client)).status_code == 200:
        assert answer.headers["connection"] == "close"
        served += 1
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert answer.headers["connection"] == "close"
    return served


async def test_sigterm_settles_refuses_finishes_and_exits(start_service: StartService) -> None:
    service = start_service(engine__max_model_len=4096, lifecycle__drain_settle_s=SETTLE_S)
    async with hold(service, 2, max_tokens=LONG) as streams, service.async_client() as client:
        assert "connection" not in (await complete(client)).headers
        service.process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        assert await reason_not_ready(client) == "draining"
        assert time.monotonic() < told + 1
        assert await served_until_refused(client) > 0
        assert time.monotonic() >= told + SETTLE_S
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/health")).status_code == 200
        seen = await asyncio.to_thread(service.metrics)
        assert total(seen, "tidegate_in_flight_requests") == 2
        assert 0 < total(seen, "tidegate_drain_seconds_left") <= 120
        assert total(seen, "tidegate_phase", phase="draining") == 1
        await streams.finish()
        last = time.monotonic()
        assert [stream.complete for stream in streams] == [True, True]
        assert finish_reasons(streams) == ["length", "length"]
    await ended(service, 0)
    assert time.monotonic() < last + 10
    reports = [line for line in service.log_lines() if line["message"] == "draining"]
    assert reports[0]["in_flight"] in (2, 3)  # the probe's own request may be one
    assert 120 < reports[0]["seconds_left"] <= 120 + SETTLE_S


async def test_ctrl_c_signals_the_engine_too_and_it_goes_on(start_service: StartService) -> None:
    service = start_service(engine__max_model_len=4096, lifecycle__drain_settle_s=0)
    async with hold(service, 2, max_tokens=600) as streams:
        service.signal_group(signal.SIGINT)
        await streams.finish()
        assert [stream.complete for stream in streams] == [True, True]
        assert finish_reasons(streams) == ["length", "length"]
    await ended(service, 0)


async def test_what_is_not_done_in_time_is_cut_with_an_error(start_service: StartService) -> None:
    service = start_service(
        engine__max_model_len=16384,
        engine__max_num_seqs=2,
        lifecycle__drain_settle_s=0,
        lifecycle__drain_timeout_s=1,
    )
    async with (
        hold(service, 2) as streams,
        service.async_client() as client,
        connect(service) as upload,
    ):
        queued = asyncio.create_task(complete(client, max_tokens=100))
        await upload.send(post_head("/v1/completions", 10))
        await until_metrics(service, lambda s: total(s, "vllm_pending_requests") == 1)
        service.signal_group(signal.SIGTERM)
        answer = await queued
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        # Its body never comes.
        assert (await upload.head())[0] == 503
        assert json.loads(await upload.rest())["error"]["code"] == "draining"
        await streams.finish()
        for stream in streams:
            assert not stream.complete
            assert stream.events()[-1]["error"]["code"] == "draining"
    await ended(service, 0, within=12)


async def test_a_second_signal_ends_at_once(start_service: StartService) -> None:
    service = start_service(engine__max_model_len=16384)
    async with hold(service, 2) as streams:
        service.process.send_signal(signal.SIGTERM)
        await until(lambda: '"message": "draining"' in service.log_text())
        service.process.send_signal(signal.SIGTERM)
        await ended(service, 128 + signal.SIGTERM, within=5)
        await streams.finish()
        assert not any(stream.complete for stream in streams)


def test_nothing_is_left_of_a_service_that_is_killed(start_service: StartService) -> None:
    service = start_service()
    assert service.engine_pids()
    service.process.kill()
    assert service.left_after(5) == []


async def test_the_command_of_a_pre_stop_hook_waits_for_the_end(
    start_service: StartService,
) -> None:
    service = start_service(engine__max_model_len=4096, lifecycle__drain_settle_s=0)
    async with hold(service, 1, max_tokens=1500) as streams:
        command = [sys.executable, "-m", "app", "drain", "--pid", str(service.process.pid)]
        hook = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        await streams.finish()
        assert streams[0].complete
        # A zombie until its parent, which is this test, has waited for it.
        await ended(service, 0)
        assert await asyncio.wait_for(hook.wait(), 10) == 0
