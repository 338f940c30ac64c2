"""An open loop of streams: what is due is sent, whatever became of the ones before; no retries."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest import prompts
from loadtest.arrivals import poisson
from loadtest.client import Ask, Client
from loadtest.plan import Planned
from loadtest.record import Record
from loadtest.settings import Target

PROMPT_WORDS = 12


@dataclass(frozen=True)
class Phase:
    """A time of constant load: `pods` times what one pod can serve."""

    name: str
    pods: float
    seconds: float


def plan(phases: Sequence[Phase], one_pod: float, tokens: int, seed: int = 0) -> list[Planned]:
    """Poisson arrivals; `one_pod` is its capacity in requests/s."""
    dice, times, start = np.random.default_rng(seed), [], 0.0
    for phase in phases:
        drawn = poisson(phase.pods * one_pod, phase.seconds, dice)
        times += [start + float(at) for at in drawn]
        start += phase.seconds
    return [
        Planned(i, at, PROMPT_WORDS, tokens, "default", prompt_seed=i) for i, at in enumerate(times)
    ]


async def drive(url: str, model: str, planned: Sequence[Planned], records: list[Record]) -> None:
    """Send them when they are due and wait for all; `records` fills up meanwhile."""
    began = time.monotonic()
    async with Client(Target(url, model=model), model) as client, asyncio.TaskGroup() as group:
        for one in planned:
            await asyncio.sleep(max(0.0, began + one.at - time.monotonic()))
            ask = Ask(one, prompts.text(PROMPT_WORDS, one.prompt_seed), began + one.at)
            records.append(ask.record())
            group.create_task(client.fill(records[-1], ask))
