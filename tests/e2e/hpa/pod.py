"""One pod: its process, and what the API server is told of it."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from tests.e2e.hpa.api import Api, Object
from tests.e2e.hpa.container import Container, hook_command
from tests.e2e.hpa.probe import Probe, Verdict, failed, hook_limit, left_for_term
from tests.rig.server import ROOT, clean_environment


@dataclass
class Life:
    """What happened to a pod; Unix times."""

    name: str
    created: float
    started: float | None = None
    ready: float | None = None
    deleted: float | None = None
    ended: float | None = None
    exit_status: int | None = None
    killed: bool = False
    fault: str | None = None

    @property
    def starting(self) -> bool:
        """Its process loads, or the machine still clears up after it."""
        ready_or_gone = self.ready or self.ended
        return self.started is not None and ready_or_gone is None


class Fault(Exception):
    """What should not happen to a pod: a probe gave it up, or its process ended by itself."""


def reason(error: BaseException) -> str:
    """Of the first of several that a group of tasks raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


class Pod:
    """Runs the container's life as a kubelet does: probes, preStop, SIGTERM, SIGKILL."""

    def __init__(self, api: Api, manifest: Object, container: Container, hook: Object) -> None:
        metadata = manifest["metadata"]
        self.path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self.container = container
        self.life = Life(metadata["name"], time.time())
        self.deleted = asyncio.Event()
        self._api, self._hook = api, hook
        self._grace_s = float(manifest["spec"]["terminationGracePeriodSeconds"])
        self._client = httpx.AsyncClient(trust_env=False)

    @property
    def running(self) -> bool:
        """It has a process, and with it an address that Prometheus scrapes."""
        return self.life.started is not None and self.life.ended is None

    async def run(self, starting: asyncio.Lock) -> None:
        """From its turn to start until the API server has forgotten it."""
        living = asyncio.create_task(self._live(starting))
        deleted = asyncio.create_task(self.deleted.wait())
        try:
            await asyncio.wait({living, deleted}, return_when=asyncio.FIRST_COMPLETED)
            if living.done() and (error := living.exception()) is not None:
                self.life.fault = reason(error)
        finally:
            living.cancel()
            deleted.cancel()
        self.life.deleted = time.time()
        if self.running:
            await self._stop()
        await self._api.remove(self.path)
        await self._client.aclose()

    async def _live(self, starting: asyncio.Lock) -> None:
        async with starting:
            # Not in a thread: a pod that is deleted meanwhile would leave a process behind.
            self.container.start()
            self.life.started = time.time()
            await self._tell(ready=False)
            await self._until(self.container.probe("startupProbe"))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ready_or_not(self.container.probe("readinessProbe")))
            group.create_task(self._alive(self.container.probe("livenessProbe")))
            group.create_task(self._watched())

    async def _until(self, probe: Probe) -> None:
        verdict = Verdict(probe)
        while not (good := await self._answers(probe)):
            if failed(verdict, good):
                raise Fault("the start-up probe gave it up")
            self._must_run()
            await asyncio.sleep(probe.period_s)

    async def _ready_or_not(self, probe: Probe) -> None:
        verdict = Verdict(probe)
        while True:
            if verdict.observe(await self._answers(probe)):
                self.life.ready = self.life.ready or time.time()
                await self._tell(ready=verdict.holds)
            await asyncio.sleep(probe.period_s)

    async def _alive(self, probe: Probe) -> None:
        verdict = Verdict(probe)
        while True:
            if failed(verdict, await self._answers(probe)):
                raise Fault("the liveness probe gave it up")
            await asyncio.sleep(probe.period_s)

    async def _watched(self) -> None:
        while True:
            self._must_run()
            await asyncio.sleep(0.2)

    def _must_run(self) -> None:
        status = self.container.process.poll()
        if status is not None:
            raise Fault(f"ended by itself with status {status}")

    async def _answers(self, probe: Probe) -> bool:
        with suppress(httpx.TransportError):
            url = f"http://{self.container.address}:{probe.port}{probe.path}"
            answer = await self._client.get(url, timeout=probe.timeout_s)
            return 200 <= answer.status_code < 400
        return False

    async def _stop(self) -> None:
        """The preStop hook, SIGTERM, and after the grace period SIGKILL for what is left."""
        began = time.monotonic()
        await self._before_stop()
        left = left_for_term(self._grace_s, time.monotonic() - began)
        self.container.process.terminate()
        try:
            self.life.exit_status = await asyncio.wait_for(self._exit_status(), left)
        except TimeoutError:
            self.life.killed = True
        await asyncio.to_thread(self.container.close)
        self.life.ended = time.time()

    async def _exit_status(self) -> int:
        while True:
            status = self.container.process.poll()
            if status is not None:
                return status
            await asyncio.sleep(0.1)

    async def _before_stop(self) -> None:
        command = hook_command(self._hook)
        if command is None:
            wanted = float(self._hook.get("sleep", {}).get("seconds", 0))
            await asyncio.sleep(hook_limit(self._grace_s, wanted))
            return
        hook = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=clean_environment())
        with suppress(TimeoutError):
            await asyncio.wait_for(hook.wait(), self._grace_s)

    async def _tell(self, ready: bool) -> None:
        status = pod_status(self.container, ready, _stamp(self.life.started or 0.0))
        await self._api.merge(f"{self.path}/status", {"status": status})


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_status(container: Container, ready: bool, started: str) -> dict[str, Any]:
    """What a kubelet writes of a pod whose container runs."""
    word, now = str(ready), _stamp(time.time())
    holds = {"Initialized": "True", "PodScheduled": "True", "ContainersReady": word, "Ready": word}
    return {
        "phase": "Running",
        "podIP": container.address,
        "startTime": started,
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": now}
            for kind, status in holds.items()
        ],
        "containerStatuses": [
            {
                "name": container.name,
                "image": container.spec["image"],
                "imageID": "",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": {"running": {"startedAt": started}},
            }
        ],
    }
