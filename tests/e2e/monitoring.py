"""A minute of changing load, as the autoscalers see it: `python -m tests.e2e.monitoring`.

Two instances are scraped by Prometheus as two pods. All the time, the rule of prometheus-adapter
and the queries of KEDA must give one value for each pod and one in all, and at each level of load
what the services' own gauges say. Then an engine is stopped (SIGSTOP) until the alert for it fires,
with the rules as shipped, and goes on until it clears. The status is 1 when something is not so.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.monitoring.alerts import FILE
from loadtest.tiny_model import build_model
from tests.rig.pods import (
    NAMES,
    STALLED,
    Values,
    adapter_answers,
    as_keda_adds,
    keda_answers,
    own_gauges,
    stalls,
    targets,
)
from tests.rig.prometheus import Prometheus, every_second
from tests.rig.service import Service, hold, tiny_settings, until
from tests.rig.shipped import hpa_metrics, keda_queries

SLOTS = 4
LEVELS = ((0, 1), (3, 2), (4, 4), (9, 4), (6, 12), (0, 7), (2, 0), (0, 0))
"""Streams at each pod: below its slots, at them, above them, and none."""
LEVEL_S = 7.5

Pods = Mapping[str, Service]


@dataclass
class Tally:
    """How many answers were looked at, and how many of them at a level that had settled."""

    answers: int = 0
    equal: int = 0

    def look(self, prometheus: Prometheus, expected: Mapping[str, Values] | None) -> None:
        """Fails when an answer is not one value for each pod and one in all, or not `expected`."""
        adapter, keda = adapter_answers(prometheus), keda_answers(prometheus)
        assert all(set(values) == set(NAMES) for values in adapter.values()), adapter
        assert set(keda) == set(keda_queries()), keda
        self.answers += 1
        if expected is not None:
            assert (adapter, keda) == (expected, as_keda_adds(expected))
            self.equal += 1


@asynccontextmanager
async def level(pods: Pods, streams: tuple[int, int]) -> AsyncIterator[Mapping[str, Values]]:
    """Holds so many streams at each pod; gives the gauges that follow, once the pods have them."""
    first, second = pods.values()
    running = [float(min(SLOTS, count)) for count in streams]
    values = {
        "vllm_pending_requests": [c - r for c, r in zip(streams, running, strict=True)],
        "vllm_running_requests": running,
        "tidegate_demand_sequences": [float(count) for count in streams],
    }
    gauges = {name: dict(zip(NAMES, values[name], strict=True)) for name in hpa_metrics()}
    async with (
        hold(first, streams[0], started=int(running[0])),
        hold(second, streams[1], started=int(running[1])),
    ):
        await until(lambda: own_gauges(pods) == gauges, why="own gauges")
        yield gauges


async def minute(pods: Pods, prometheus: Prometheus) -> Tally:
    """Goes through the levels."""
    tally = Tally()
    for streams in LEVELS:
        async with level(pods, streams) as gauges:
            ends = time.monotonic() + LEVEL_S
            while adapter_answers(prometheus) != gauges:
                assert time.monotonic() < ends, f"{gauges} not seen in {LEVEL_S} s"
                tally.look(prometheus, None)
                await asyncio.sleep(0.2)
            while time.monotonic() < ends:
                tally.look(prometheus, gauges)
                await asyncio.sleep(0.2)
        shown = {metric: list(values.values()) for metric, values in gauges.items()}
        print(f"  streams {streams}: {shown}", flush=True)
    return tally


async def stall(pod: Service, prometheus: Prometheus) -> tuple[float, float]:
    """Seconds from the stop of an engine to the alert, and from its going on to the end of it."""

    async with hold(pod, 2) as held:
        held.may_end = True
        assert stalls(prometheus) == set()
        began = time.monotonic()
        with pod.engine_stopped():
            await until(lambda: stalls(prometheus) != set(), within=60, every=0.2)
            fired = time.monotonic()
        resumed = time.monotonic()
        await until(lambda: stalls(prometheus) == set(), within=30, every=0.2)
        return fired - began, time.monotonic() - resumed


async def watched(pods: Pods, prometheus: Prometheus) -> None:
    query = "vllm_pending_requests"
    await until(lambda: len(prometheus.query(query)) == len(NAMES), within=30)
    began = time.monotonic()
    tally = await minute(pods, prometheus)
    print(
        f"{time.monotonic() - began:.0f} s, {tally.answers} looks at {len(hpa_metrics())} metrics "
        f"of the adapter and {len(keda_queries())} queries of KEDA: one value for each pod and one "
        f"in all each time; {tally.equal} at a settled level, all equal to the services' gauges"
    )
    fired, cleared = await stall(pods[NAMES[1]], prometheus)
    print(f"{STALLED}: fires {fired:.1f} s after the stop, ends {cleared:.1f} s after it goes on")


def main() -> int:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = tiny_settings(build_model(directory / "model"))
        settings |= {"engine.max_model_len": 8192, "engine.max_num_seqs": SLOTS}
        pods = {name: Service(settings, directory / name) for name in NAMES}
        for pod in pods.values():
            stack.callback(pod.close)
            pod.start()
        for pod in pods.values():
            pod.wait_ready()
        with Prometheus(every_second(targets(pods), [FILE]), directory) as prometheus:
            asyncio.run(watched(pods, prometheus))
    return 0


if __name__ == "__main__":
    sys.exit(main())
