"""What the autoscaler wanted, what there was, and how busy the machine was, second by second."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx
import psutil

from tests.e2e.hpa.api import Api


@dataclass(frozen=True)
class Sample:
    """One moment; `at` is Unix time, `cpu` percent of the whole machine since the last one."""

    at: float
    desired: int
    ready: int
    cpu: float
    starting: bool


async def watch(
    api: Api, deployment: str, starting: Callable[[], bool], samples: list[Sample]
) -> None:
    """Until it is cancelled."""
    psutil.cpu_percent()
    while True:
        await asyncio.sleep(1.0)
        # The API server may be busy; a second is missing then, and not the rest of the run.
        with suppress(httpx.TransportError):
            found = await api.get(deployment)
            ready = found["status"].get("readyReplicas", 0)
            now = time.time(), found["spec"]["replicas"], ready, psutil.cpu_percent()
            samples.append(Sample(*now, starting()))
