"""Gauges that an autoscaler can trust, from the start of the process to the last cancellation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.conftest import StartService
from tests.rig.service import Held, Samples, Service, hold, total, until, until_metrics

GAUGES = (
    "vllm_pending_requests",
    "vllm_running_requests",
    "vllm_kv_cache_usage_percent",
    "vllm_kv_cache_usage_ratio",
    "vllm_pending_tokens",
    "tidegate_demand_sequences",
)
SLOTS = 4
POLL_S = 0.1
THRESHOLD = 5
"""More than the slots: all of them are pending for a moment when they are taken at once."""


@pytest.fixture(scope="module")
def started(start_module_service: StartService) -> Service:
    """Only started: the port is not open yet."""
    return start_module_service(
        wait=False,
        engine__max_model_len=8192,
        metrics__poll_interval_s=POLL_S,
        metrics__saturation_threshold=THRESHOLD,
    )


@pytest.fixture(scope="module")
def truth(started: Service) -> Service:
    """Streams of 8,000 tokens: none ends before a test is over."""
    started.wait_ready()
    return started


def gauges(samples: Samples) -> dict[str, float]:
    return {name: total(samples, name, model_name="tiny") for name in GAUGES}


def is_idle(samples: Samples) -> bool:
    return not any(gauges(samples).values())


def pending(samples: Samples) -> float:
    return total(samples, "vllm_pending_requests")


def running(samples: Samples) -> float:
    return total(samples, "vllm_running_requests")


def count(samples: Samples, kind: str, **labels: str) -> float:
    """A counter of sequences; one that has counted nothing is not exported."""
    name = f"tidegate_{kind}_sequences_total"
    return sum(v for (key, own), v in samples.items() if key == name and labels.items() <= own)


@asynccontextmanager
async def load(service: Service, streams: int, waiting: int) -> AsyncIterator[Held]:
    """So many streams, of which `waiting` wait; on leaving, their clients are gone.

    They wait from the start: all at once would be pending for a moment.
    """
    busy = streams - waiting
    async with hold(service, busy) as running_ones, hold(service, waiting, started=0) as held:
        await until_metrics(service, lambda s: (pending(s), running(s)) == (waiting, busy))
        yield held
        held.close()
        await until_metrics(service, lambda s: pending(s) == 0)
        running_ones.close()


async def test_the_gauges_are_there_and_0_while_the_model_loads(started: Service) -> None:
    """The first test of the module: the others wait until the service is ready."""
    client = started.client()
    await until(lambda: _is_open(started), within=60)
    assert client.get("/readyz").status_code == 503
    samples = await asyncio.to_thread(started.metrics)
    assert gauges(samples) == dict.fromkeys(GAUGES, 0.0)
    assert total(samples, "tidegate_phase", phase="starting") == 1
    assert client.get("/readyz").status_code == 503


def _is_open(service: Service) -> bool:
    try:
        return service.client().get("/livez").status_code == 200
    except httpx.TransportError:
        return False


async def test_the_gauges_are_0_once_all_are_cancelled(truth: Service) -> None:
    async with load(truth, 6, waiting=2):
        samples = await asyncio.to_thread(truth.metrics)
        assert min(gauges(samples).values()) > 0
    # One poll, and ten times that for a busy machine.
    await until_metrics(truth, is_idle, within=10 * max(POLL_S, 0.5))
    assert truth.metric("tidegate_phase", phase="ready") == 1


async def test_ten_scrapes_say_the_same(truth: Service) -> None:
    async with load(truth, 6, waiting=2):
        scrapes = await asyncio.gather(*(asyncio.to_thread(truth.metrics) for _ in range(10)))
        assert {(pending(s), running(s)) for s in scrapes} == {(2, 4)}
        assert {total(s, "tidegate_demand_sequences") for s in scrapes} == {6}
        assert {count(s, "accepted") - count(s, "finished") for s in scrapes} == {6}
        for name in GAUGES:
            assert {sum(key == name for key, _ in samples) for samples in scrapes} == {1}


async def test_a_burst_is_counted_from_its_acceptance(truth: Service) -> None:
    before = count(await asyncio.to_thread(truth.metrics), "accepted")
    async with hold(truth, 20, started=0) as held:
        scrapes = [await asyncio.to_thread(truth.metrics)]
        while count(scrapes[-1], "accepted") - before < 20:
            scrapes.append(await asyncio.to_thread(truth.metrics))
        held.close()
    assert pending(scrapes[-1]) + running(scrapes[-1]) == 20
    for samples in scrapes:
        unfinished = count(samples, "accepted") - count(samples, "finished")
        assert pending(samples) + running(samples) == unfinished
    await until_metrics(truth, is_idle)


async def test_an_overload_of_short_prompts_is_pending_and_not_kv_usage(truth: Service) -> None:
    async with load(truth, 40, waiting=36):
        samples = await asyncio.to_thread(truth.metrics)
        assert pending(samples) == 36
        assert running(samples) == SLOTS
        assert 0 < total(samples, "vllm_kv_cache_usage_percent") < 50
    await until_metrics(truth, is_idle)


async def test_pending_tokens_are_those_of_the_waiting_prompts(truth: Service) -> None:
    lengths = (10, 200, 3000)
    async with load(truth, SLOTS, waiting=0):
        prompts = [[100 + i] * length for i, length in enumerate(lengths)]
        async with hold(truth, 1, started=0, prompt=prompts, max_tokens=100) as held:
            held.may_end = True
            samples = await until_metrics(truth, lambda s: pending(s) == len(lengths))
            await until_metrics(truth, lambda s: count(s, "accepted") == count(samples, "accepted"))
            samples = await until_metrics(
                truth, lambda s: total(s, "vllm_pending_tokens") == sum(lengths)
            )
            assert pending(samples) == len(lengths)
            held.close()
    await until_metrics(truth, is_idle)


async def test_clients_that_leave_are_counted_as_aborted(truth: Service) -> None:
    before = await asyncio.to_thread(truth.metrics)
    async with load(truth, 5, waiting=1):
        pass
    after = await until_metrics(truth, is_idle)
    aborted = count(after, "finished", reason="aborted") - count(
        before, "finished", reason="aborted"
    )
    assert aborted == 5
    assert count(after, "accepted") == count(after, "finished")


async def test_a_hundred_disconnects_leave_nothing_behind(truth: Service) -> None:
    for _ in range(5):
        async with hold(truth, 20, started=1) as held:
            held.close()
            samples = await asyncio.to_thread(truth.metrics)
            assert min(gauges(samples).values()) >= 0
    await until_metrics(truth, is_idle)


def warnings(service: Service) -> list[dict[str, object]]:
    lines = service.log_lines()
    return [line for line in lines if str(line.get("message")).startswith("saturated")]


async def test_one_warning_for_each_crossing_of_the_threshold(truth: Service) -> None:
    before = len(warnings(truth))
    for crossing in (1, 2):
        async with load(truth, SLOTS + THRESHOLD, waiting=THRESHOLD):
            await polls(truth, 5)
            assert len(warnings(truth)) - before == crossing - 1
            async with hold(truth, 2, started=0) as held:
                await until_metrics(truth, lambda s: pending(s) == THRESHOLD + 2)
                await polls(truth, 5)
                held.close()
        await until_metrics(truth, is_idle)
        await polls(truth, 2)
        assert len(warnings(truth)) - before == crossing
    for line in warnings(truth)[before:]:
        assert line["level"] == "warning"
        assert line["threshold"] == THRESHOLD
        assert line["pending"] in (THRESHOLD + 1, THRESHOLD + 2)


async def polls(service: Service, number: int) -> None:
    """Waits for so many polls that no scrape asked for."""
    await asyncio.sleep(number * POLL_S)
    samples = await asyncio.to_thread(service.metrics)
    assert total(samples, "tidegate_poll_errors_total") == 0
