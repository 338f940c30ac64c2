"""Two engines in one service: the gauges are about both."""

import asyncio
import json
import os
import signal
import time

import pytest

from app.admission.gate import lookahead_of
from tests.conftest import StartService
from tests.rig.service import Samples, Service, hold, shown, total, until_metrics

ENGINES = ("0", "1")
SLOTS = 4
LOOKAHEAD = lookahead_of(2 * SLOTS)


@pytest.fixture(scope="module")
def pair(start_module_service: StartService) -> Service:
    """Two engines on few cores: with more than one thread each they wait for one another."""
    return start_module_service(
        engine__data_parallel_size=2,
        engine__max_model_len=8192,
        server__trust_routing_headers=True,
        env={"OMP_NUM_THREADS": "1"},
    )


def of_each(samples: Samples, name: str) -> list[float]:
    """The engine's own series, by engine."""
    return [total(samples, name, engine=engine, model_name="tiny") for engine in ENGINES]


def ours(samples: Samples, name: str) -> float:
    return total(samples, name, model_name="tiny")


def is_idle(samples: Samples) -> bool:
    names = ("pending_requests", "running_requests", "pending_tokens", "kv_cache_usage_ratio")
    return all(ours(samples, f"vllm_{name}") == 0 for name in names)


def is_full(samples: Samples) -> bool:
    """Both engines run what they can, and have what may wait inside them."""
    running = of_each(samples, "vllm:num_requests_running")
    waiting = sum(of_each(samples, "vllm:num_requests_waiting"))
    return running == [SLOTS, SLOTS] and waiting == LOOKAHEAD


def agrees(samples: Samples, at_the_gate: int = 0) -> None:
    """Our gauges are of the same moment as the engines' own series in the same scrape."""
    running = of_each(samples, "vllm:num_requests_running")
    waiting = of_each(samples, "vllm:num_requests_waiting")
    usage = of_each(samples, "vllm:kv_cache_usage_perc")
    assert ours(samples, "vllm_running_requests") == sum(running), shown(samples)
    pending = sum(waiting) + at_the_gate
    assert ours(samples, "vllm_pending_requests") == pending, shown(samples)
    ratio = ours(samples, "vllm_kv_cache_usage_ratio")
    assert ratio == pytest.approx(sum(usage) / len(ENGINES)), shown(samples)
    percent = ours(samples, "vllm_kv_cache_usage_percent")
    assert percent == pytest.approx(100 * ratio), shown(samples)


async def test_the_gauges_are_sums_over_both_engines(pair: Service) -> None:
    async with hold(pair, 12, started=2 * SLOTS) as held:
        # Some of the twelve may still be on their way when the first eight run.
        samples = await until_metrics(
            pair, lambda s: is_full(s) and ours(s, "vllm_pending_requests") >= 4
        )
        assert ours(samples, "vllm_running_requests") == 2 * SLOTS
        assert ours(samples, "vllm_pending_requests") == 4
        assert ours(samples, "vllm_kv_cache_usage_ratio") > 0
        agrees(samples, at_the_gate=4 - LOOKAHEAD)
        held.close()
    await until_metrics(pair, is_idle, within=5.0)


def has_reached_both(samples: Samples) -> bool:
    """Both engines run some of the sequences, and between them they have reported all."""
    running = of_each(samples, "vllm:num_requests_running")
    waiting = of_each(samples, "vllm:num_requests_waiting")
    return min(running) > 0 and sum(running) + sum(waiting) == 2 * SLOTS


async def test_one_request_reaches_both_engines(pair: Service) -> None:
    async with hold(pair, 1, n=2 * SLOTS) as held:
        samples = await until_metrics(pair, has_reached_both, within=60)
        agrees(samples)
        held.close()
    before = of_each(await until_metrics(pair, is_idle), "vllm:generation_tokens_total")
    async with hold(pair, 1, n=2 * SLOTS, max_tokens=200) as held:
        await held.finish()
        assert held[0].complete
    after = of_each(await until_metrics(pair, is_idle), "vllm:generation_tokens_total")
    made = [now - then for now, then in zip(after, before, strict=True)]
    assert sum(made) == 2 * SLOTS * 200
    assert min(made) >= 200


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_one_engine_has_is_not_taken_for_the_others(pair: Service, engine: str) -> None:
    """The other engine was busy until just now, and its last report still says so."""
    busy, quiet = {"x-data-parallel-rank": engine}, {"x-data-parallel-rank": _other(engine)}
    async with hold(pair, SLOTS, headers=quiet) as before:
        before.close()
        async with hold(pair, 2, headers=busy) as held:
            held.may_end = True
            samples = await until_metrics(pair, lambda s: ours(s, "vllm_running_requests") == 2)
            held.close()
    assert total(samples, "vllm:num_requests_running", engine=engine) == 2
    usage = total(samples, "vllm:kv_cache_usage_perc", engine=engine)
    assert ours(samples, "vllm_kv_cache_usage_ratio") == pytest.approx(usage / 2)
    assert ours(samples, "vllm_pending_requests") == 0
    await until_metrics(pair, is_idle, within=5.0)


async def test_one_engine_that_dies_ends_all_requests_and_the_service(pair: Service) -> None:
    """The last one: it ends the pair."""
    first, _ = pair.engine_pids()
    async with hold(pair, 2 * SLOTS + 4, started=2 * SLOTS) as held:
        killed = time.monotonic()
        os.kill(first, signal.SIGKILL)
        await held.finish(within=5)
        assert time.monotonic() < killed + 5
        for stream in held:
            assert not stream.complete
            told = stream.data[-1] if stream.data else stream.body
            assert json.loads(told)["error"]["code"] == "engine_dead"
    assert await asyncio.to_thread(pair.wait, 30) == 1
    assert pair.left_after(5) == []


def _other(engine: str) -> str:
    return ENGINES[1 - ENGINES.index(engine)]
