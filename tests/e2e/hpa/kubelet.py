"""Scheduler and kubelet in one: gives each new pod an address of this machine and runs it."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx

from tests.e2e.hpa.api import Api, Object
from tests.e2e.hpa.container import LISTENING, Container, Node
from tests.e2e.hpa.pod import Life, Pod
from tests.e2e.hpa.scrapes import Scrapes

POLL_S = 0.5
NODE = "this-machine"
ADDRESSES = tuple(f"127.1.{os.getpid() % 250 + 1}.{number}" for number in range(1, 9))
"""Of the loopback interface, for as many pods as can be at a time; another rig beside this one has
others."""


class Kubelet:
    """Follows the pods of one namespace until it is closed; starts one after the other.

    In a cluster they start at once, each on cores of its own. Here they would take each other's.
    """

    def __init__(
        self, api: Api, namespace: str, node: Node, hook: Object, scrapes: Scrapes
    ) -> None:
        self.lives: list[Life] = []
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._api, self._node, self._hook, self._scrapes = api, node, hook, scrapes
        self._pods: dict[str, tuple[Pod, asyncio.Task[None]]] = {}
        self._starting = asyncio.Lock()

    def starts(self) -> bool:
        """Whether a pod loads at the moment."""
        return any(life.starting for life in self.lives)

    async def run(self) -> None:
        """Until it is cancelled; then the processes are ended without ceremony."""
        try:
            while True:
                # The API server may be busy; what was missed is seen at the next look.
                with suppress(httpx.TransportError):
                    await self._look()
                await asyncio.sleep(POLL_S)
        finally:
            await self._end()

    async def _look(self) -> None:
        found = {pod["metadata"]["uid"]: pod for pod in (await self._api.get(self._path))["items"]}
        for uid, manifest in found.items():
            if uid not in self._pods and len(self._pods) < len(ADDRESSES):
                await self._take(uid, manifest)
            if "deletionTimestamp" in manifest["metadata"] and uid in self._pods:
                self._pods[uid][0].deleted.set()
        for uid in [uid for uid, (_, task) in self._pods.items() if task.done()]:
            self._pods.pop(uid)[1].result()
        self._scrapes.follow([target(pod) for pod, _ in self._pods.values() if pod.running])

    async def _take(self, uid: str, manifest: Object) -> None:
        used = {pod.container.address for pod, _ in self._pods.values()}
        address = next(address for address in ADDRESSES if address not in used)
        container = Container(manifest, address, self._node)
        pod = Pod(self._api, manifest, container, self._hook)
        await self._api.post(f"{pod.path}/binding", binding(manifest))
        self.lives.append(pod.life)
        self._pods[uid] = pod, asyncio.create_task(pod.run(self._starting))

    async def _end(self) -> None:
        for _, task in self._pods.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._pods.values()), return_exceptions=True)
        closing = (asyncio.to_thread(pod.container.close) for pod, _ in self._pods.values())
        await asyncio.gather(*closing)


def binding(manifest: Object) -> Object:
    """What a scheduler posts."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": manifest["metadata"]["name"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }


def target(pod: Pod) -> tuple[str, Mapping[str, str]]:
    """As the Prometheus operator labels what a PodMonitor finds."""
    _, _, _, _, namespace, _, name = pod.path.split("/")
    labels = {"namespace": namespace, "pod": name, "container": pod.container.name}
    return f"{pod.container.address}:{LISTENING['ops']}", {**labels, "endpoint": "ops"}


@dataclass
class Address:
    """Of a pod that may be, before a load balancer."""

    url: str
    ready_url: str


def addresses() -> list[Address]:
    """All of them: the ones without a pod are not ready."""
    api, ops = LISTENING["api"], LISTENING["ops"]
    return [Address(f"http://{ip}:{api}", f"http://{ip}:{ops}/readyz") for ip in ADDRESSES]
