"""The whole chain, put together and run once: control plane, scrapes, adapter, pods, load."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtest.tiny_model import build_model
from tests.e2e.hpa import adapter, load, manifests
from tests.e2e.hpa.api import Api, Object, collection
from tests.e2e.hpa.container import Node
from tests.e2e.hpa.control_plane import ControlPlane
from tests.e2e.hpa.kubelet import Kubelet, addresses
from tests.e2e.hpa.manifests import Shipped
from tests.e2e.hpa.pace import WORKER
from tests.e2e.hpa.scenario import TOKENS, Scenario, one_pod
from tests.e2e.hpa.scrapes import Scrapes
from tests.e2e.hpa.tls import Certificate, self_signed
from tests.e2e.hpa.verdict import Run
from tests.e2e.hpa.watch import watch
from tests.rig.haproxy import HAProxy
from tests.rig.service import KV_BYTES, SERVED, UNIPROC
from tests.rig.shipped import adapter_rule

PATIENCE_S = 300.0
SERIES = {
    "pending": "sum(vllm_pending_requests)",
    "running": "sum(vllm_running_requests)",
    "demand": "sum(tidegate_demand_sequences)",
}


@dataclass(frozen=True)
class Surroundings:
    """What is there before the first object is created."""

    plane: ControlPlane
    tls: Certificate
    scrapes: Scrapes
    balancer: HAProxy
    adapter_port: int
    node: Node


@contextmanager
def surroundings(parts: Shipped, directory: Path) -> Iterator[Surroundings]:
    """All that is not in the manifests; ended whatever happens."""
    with ExitStack() as held:
        tls = self_signed(directory)
        plane = held.enter_context(ControlPlane(tls, directory))
        scrapes = held.enter_context(Scrapes(parts.monitor, directory))
        names = held.enter_context(adapter.pod_names(plane.url, tls))
        answers = adapter.Adapter(adapter_rule(), scrapes, names)
        port = held.enter_context(adapter.served(answers, tls))
        balancer = held.enter_context(HAProxy(addresses(), directory))
        configs = manifests.written(parts.configs, directory / "configs")
        node = Node(directory, configs, overrides(build_model(directory / "model")))
        yield Surroundings(plane, tls, scrapes, balancer, port, node)


def overrides(model: Path) -> dict[str, str]:
    """The tiny model in place of the large one, and what it takes to run it on a CPU.

    Slots, admission and life cycle stay the manifest's.
    """
    return {
        "engine.model": str(model),
        "engine.served_model_name": SERVED,
        "engine.dtype": "float32",
        "engine.enforce_eager": "true",
        "engine.kv_cache_memory_bytes": str(KV_BYTES),
        "engine.distributed_executor_backend": UNIPROC,
        "engine.worker_cls": WORKER,
    }


def run(scenario: Scenario, results: Path) -> Run:
    """One scenario from nothing to nothing; logs of all processes are left in `results`."""
    parts = scenario.change(manifests.shipped(manifests.rendered(scenario.overlay)))
    with tempfile.TemporaryDirectory(prefix="hpa-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        try:
            with surroundings(parts, directory) as around:
                return asyncio.run(_run(scenario, parts, around))
        finally:
            _keep_logs(directory, results / f"{scenario.name}-logs")


def _keep_logs(directory: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for log in directory.glob("*.log"):
        shutil.copy(log, kept)


async def _run(scenario: Scenario, parts: Shipped, around: Surroundings) -> Run:
    async with Api(around.plane.url, around.tls) as api:
        kubelet = Kubelet(api, parts.namespace, around.node, parts.hook, around.scrapes)
        running = asyncio.create_task(kubelet.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await _apply(api, parts, around.adapter_port)
            loading = asyncio.create_task(_load(scenario, parts, around, api, kubelet))
            # A kubelet that fails ends the run.
            await asyncio.wait({loading, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                loading.cancel()
                running.result()
            return await loading
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def _apply(api: Api, parts: Shipped, adapter_port: int) -> None:
    """Everything but the load; returns when the autoscaler reads its metrics."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": parts.namespace}}
    await api.create(namespace)
    for item in (*adapter.registration(adapter_port), *parts.plain, parts.deployment):
        await api.create(item)
    await _until(api, parts.deployment, lambda item: bool(item["status"].get("readyReplicas")))
    await api.create(parts.hpa)
    await _until(api, parts.hpa, scaling_is_active)


def scaling_is_active(hpa: Object) -> bool:
    """The autoscaler has read its metrics; told as conditions by v2beta2."""
    conditions = hpa.get("status", {}).get("conditions") or ()
    return any(c["type"] == "ScalingActive" and c["status"] == "True" for c in conditions)


async def _until(api: Api, manifest: Object, holds: Callable[[Object], bool]) -> None:
    path = _path(manifest)
    while True:
        if holds(await api.get(path)):
            return
        await asyncio.sleep(0.5)


def _path(manifest: Object) -> str:
    return f"{collection(manifest)}/{manifest['metadata']['name']}"


async def _load(
    scenario: Scenario, parts: Shipped, around: Surroundings, api: Api, kubelet: Kubelet
) -> Run:
    slots = int(manifests.settings(parts)["engine"]["max_num_seqs"])
    planned = load.plan(scenario.phases, one_pod(slots), TOKENS)
    began = time.time()
    steady, steady_end = (began + at for at in scenario.span())
    found = Run(began, steady, steady_end, lives=kubelet.lives)
    found.sent = [began + one.at for one in planned]
    seen = watch(api, _path(parts.deployment), kubelet.starts, found.samples)
    watching = asyncio.create_task(seen)
    try:
        await load.drive(around.balancer.url, SERVED, planned, found.records)
        await asyncio.sleep(max(0.0, began + scenario.seconds - time.time()))
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    for name, query in SERIES.items():
        found.series[name] = around.scrapes.over(query, began, time.time())
    return found
