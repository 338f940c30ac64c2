"""Continuous batching, as clients and the gauges see it."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx

from tests.rig.service import Held, Samples, Service, hold, scrape, total, until_metrics

# All begin in one step and decode in step: the fifth takes the first short one's slot.
LENGTHS = {"short-1": 250, "short-2": 650, "short-3": 700, "long": 940}
FIFTH = 300
TURN = 0.02
ENDS = ["short-1", "fifth", "short-2", "short-3", "long"]


@dataclass(frozen=True)
class Moment:
    """One scrape, in sequences; accepted and finished since the test began."""

    pending: float
    running: float
    accepted: float
    finished: float


class Gauges:
    """Scrapes of a service, counted from its state at the first."""

    def __init__(self, before: Samples) -> None:
        self.accepted_before = _sum(before, "tidegate_accepted_sequences_total")
        self.finished_before = _sum(before, "tidegate_finished_sequences_total")

    def moment(self, samples: Samples) -> Moment:
        return Moment(
            pending=total(samples, "vllm_pending_requests", model_name="tiny"),
            running=total(samples, "vllm_running_requests", model_name="tiny"),
            accepted=_sum(samples, "tidegate_accepted_sequences_total") - self.accepted_before,
            finished=_sum(samples, "tidegate_finished_sequences_total") - self.finished_before,
        )


async def test_a_queued_request_starts_when_the_first_slot_is_free(service: Service) -> None:
    run = uuid.uuid4().hex[:8]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(service.async_client())
        gauges = Gauges(await scrape(client, service))

        async def start(name: str, max_tokens: int) -> Held:
            headers = {"x-request-id": f"{run}.{name}"}
            opened = hold(service, 1, started=0, max_tokens=max_tokens, headers=headers)
            held = await stack.enter_async_context(opened)
            held.may_end = True
            await until_metrics(service, lambda seen: gauges.moment(seen).accepted > len(streams))
            return held

        # Stopped, so that none can end before the fifth is there, however slowly they are sent.
        streams: list[Held] = []
        with service.engine_stopped():
            for name, length in (*LENGTHS.items(), ("fifth", FIFTH)):
                streams.append(await start(name, length))
        moments = await watch(client, service, gauges, streams)
    assert [stream.complete for held in streams for stream in held] == [True] * 5
    assert ended(service, run) == ENDS
    told(moments)


async def watch(
    client: httpx.AsyncClient, service: Service, gauges: Gauges, streams: Sequence[Held]
) -> list[Moment]:
    """Scrapes until all streams have ended, between turns of the engine of a few steps each.

    A loaded machine can take longer over a scrape than the engine over a hundred steps.
    """
    moments = []
    while not all(stream.ended for held in streams for stream in held):
        with service.engine_stopped():
            moments.append(gauges.moment(await scrape(client, service)))
        await asyncio.sleep(TURN)
    return moments


def ended(service: Service, run: str) -> list[str]:
    """The requests of this run in the order in which the service finished them."""
    ids = [line.get("id", "") for line in service.log_lines()]
    return [name.partition(".")[2] for name in ids if name.startswith(f"{run}.")]


def told(moments: Sequence[Moment]) -> None:
    """The scrapes add up, and show the queued fifth first and then in the batch."""
    for moment in moments:
        assert moment.pending + moment.running == moment.accepted - moment.finished, moment
        assert moment.running <= 4, moment
    queued = Moment(pending=1, running=4, accepted=5, finished=0)
    taken = Moment(pending=0, running=4, accepted=5, finished=1)
    alone = Moment(pending=0, running=1, accepted=5, finished=4)
    story = [moment for moment in dict.fromkeys(moments) if moment in (queued, taken, alone)]
    assert story == [queued, taken, alone], moments


def _sum(samples: Samples, name: str) -> float:
    """Over all labels; a counter that nothing has counted yet is not exported."""
    return sum(value for (key, _), value in samples.items() if key == name)
