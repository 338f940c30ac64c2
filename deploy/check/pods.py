"""The pods of the service: their end, their probes, what they may and what they get."""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from deploy.check.findings import Findings
from deploy.check.objects import Object, dig
from deploy.check.quantities import quantity
from deploy.check.served import Served, environment, served
from deploy.check.tree import Overlay

TEARDOWN_S: Final = 10.0
"""What the service takes at most from the last token to its end."""
LOAD_S: Final = 600.0
"""A start-up probe that gives up before this kills models that are only slow."""

_PATHS: Final = {
    "startupProbe": "/readyz",
    "readinessProbe": "/readyz",
    "livenessProbe": "/livez",
}
# Only said by those who ask for more.
_NOT_ASKED: Final = ("hostNetwork", "hostPID", "hostIPC", "securityContext.privileged")
_POD: Final = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext.runAsNonRoot": True,
    "securityContext.seccompProfile.type": "RuntimeDefault",
}
_CONTAINER: Final = {
    "securityContext.allowPrivilegeEscalation": False,
    "securityContext.readOnlyRootFilesystem": True,
    "securityContext.capabilities.drop": ["ALL"],
}


def graces(overlay: Overlay) -> Findings:
    """The grace period is longer than hook, settle, drain and teardown together."""
    for item in served(overlay):
        need = item.preparing_s + TEARDOWN_S
        words = f"preStop {item.preparing_s:g}"
        if not item.pods.works_only:
            lifecycle = item.settings.lifecycle
            need = item.ending_s + TEARDOWN_S
            words += f" + settle {lifecycle.drain_settle_s:g} + drain {lifecycle.drain_timeout_s:g}"
        grace = item.pods.spec.get("terminationGracePeriodSeconds", 30)
        if grace <= need:
            yield item.finding(
                "spec.terminationGracePeriodSeconds",
                f"{grace} is not above {words} + {TEARDOWN_S:g} = {need:g}",
            )


def workers(overlay: Overlay) -> Findings:
    """Workers outlive their leader's drain, which needs them, but not their own end."""
    everyone = served(overlay)
    for worker in (item for item in everyone if item.pods.works_only):
        if dig(worker.pods.container, "lifecycle.preStop.sleep"):
            yield worker.finding(
                "spec.containers[0].lifecycle.preStop.sleep",
                "goes on when the worker has ended: a command (exec) ends with it",
            )
        for leader in (item for item in everyone if item.pods.owner is worker.pods.owner):
            if not leader.pods.works_only and worker.preparing_s < leader.ending_s:
                yield worker.finding(
                    "spec.containers[0].lifecycle.preStop",
                    f"{worker.preparing_s:g} s: the leader's streams need {leader.ending_s:g} s "
                    "to end, with this worker",
                )


def groups(overlay: Overlay) -> Findings:
    """A group has as many pods as the engine has nodes."""
    for item in served(overlay):
        size = dig(item.pods.owner, "spec.leaderWorkerTemplate.size")
        nodes = (item.settings.engine.model_extra or {}).get("nnodes", 1)
        if size is not None and size != nodes:
            problem = f"{size}, but engine.nnodes is {nodes}"
            yield overlay.finding(item.pods.owner, "spec.leaderWorkerTemplate.size", problem)


def probes(overlay: Overlay) -> Findings:
    """Each probe asks its route on the operational port, with room for a load."""
    for item in served(overlay):
        if not item.pods.works_only:
            yield from _probes(item)


def _probes(item: Served) -> Findings:
    container = item.pods.container
    for name, path in _PATHS.items():
        key = f"spec.containers[0].{name}"
        asked = dig(container, f"{name}.httpGet")
        if asked is None:
            yield item.finding(key, f"is missing; it asks {path}")
            continue
        if asked.get("path") != path:
            yield item.finding(f"{key}.httpGet.path", f"{asked.get('path')} is not {path}")
        ours = item.settings.server.ops_port or item.settings.server.port
        if item.pods.port(asked["port"]) != ours:
            yield item.finding(
                f"{key}.httpGet.port", f"{asked['port']} is not the service's port {ours}"
            )
    yield from _windows(item)


def _windows(item: Served) -> Findings:
    container, owner = item.pods.container, item.pods.owner
    startup, ready, live = (window_s(container.get(name, {})) for name in _PATHS)
    if startup < LOAD_S:
        yield item.finding(
            "spec.containers[0].startupProbe",
            f"gives up after {startup:g} s: kills what loads longer (at least {LOAD_S:g})",
        )
    if live <= ready:
        yield item.finding(
            "spec.containers[0].livenessProbe",
            f"restarts after {live:g} s, before readiness has taken the pod out ({ready:g} s)",
        )
    deadline = dig(owner, "spec.progressDeadlineSeconds", 600)
    if owner["kind"] == "Deployment" and deadline <= startup:
        yield item.overlay.finding(
            owner,
            "spec.progressDeadlineSeconds",
            f"{deadline} is not above the start-up probe's {startup:g} s",
        )


def window_s(probe: Object) -> float:
    """How long a probe has to fail before it has a consequence."""
    return float(probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3))


def ports(overlay: Overlay) -> Findings:
    """The ports are those of the settings, and the operational ones have a port of their own."""
    for item in (item for item in served(overlay) if not item.pods.works_only):
        server = item.settings.server
        if server.ops_port is None:
            yield item.finding(
                "settings", "server.ops_port is not set: probes and metrics are on the API's port"
            )
        for name, number in (("api", server.port), ("ops", server.ops_port)):
            if number is not None and item.pods.port(name) != number:
                yield item.finding(
                    "spec.containers[0].ports",
                    f"{name} is {item.pods.port(name)}, the settings say {number}",
                )


def rights(overlay: Overlay) -> Findings:
    """No pod may do more than it needs."""
    for item in served(overlay):
        for key, value in _POD.items():
            yield from _equal(item, item.pods.spec, key, value, "spec")
        for key, value in _CONTAINER.items():
            yield from _equal(item, item.pods.container, key, value, "spec.containers[0]")
        for key in _NOT_ASKED:
            if dig(item.pods.spec, key) or dig(item.pods.container, key):
                yield item.finding(f"spec: {key}", "is not needed")
        if dig(item.pods.spec, "securityContext.runAsUser") == 0:
            yield item.finding("spec.securityContext.runAsUser", "0 is root")


def images(overlay: Overlay) -> Findings:
    """An overlay says where its image comes from: a bare name is one of Docker Hub's."""
    for item in served(overlay):
        image = item.pods.container.get("image", "")
        if overlay.name.startswith("overlays/") and "/" not in image:
            yield item.finding("spec.containers[0].image", f"{image}: from no registry")


def _equal(item: Served, where: Object, key: str, value: Any, prefix: str) -> Findings:
    found = dig(where, key)
    if found != value:
        yield item.finding(f"{prefix}.{key}", f"is {found!r}, not {value!r}")


def resources(overlay: Overlay) -> Findings:
    """Memory is reserved in full and holds /dev/shm, threads and ranks have their CPUs and GPUs."""
    for item in served(overlay):
        limits = dig(item.pods.container, "resources.limits", {})
        yield from _memory(item, limits)
        yield from _threads(item, limits)
        if "nvidia.com/gpu" in limits:
            yield from _gpus(item, int(quantity(limits["nvidia.com/gpu"])))


def _memory(item: Served, limits: Object) -> Findings:
    requests = dig(item.pods.container, "resources.requests", {})
    if limits and requests.get("memory") != limits.get("memory"):
        yield item.finding(
            "spec.containers[0].resources", "memory that is not requested can be taken away again"
        )
    shared = dig(item.pods.mount("/dev/shm") or {}, "emptyDir")
    if shared is None or shared.get("medium") != "Memory":
        yield item.finding("spec.volumes", "/dev/shm is no volume of memory: 64 MB are too little")
    elif limits and not _fits(shared, limits):
        yield item.finding("spec.volumes", "/dev/shm has no size, or one above the memory limit")


def _threads(item: Served, limits: Object) -> Findings:
    """A limit of CPU is none on threads, and more of them than that wait for one another."""
    threads = environment(item.pods.container).get("OMP_NUM_THREADS", "inf")
    if "cpu" in limits and float(threads) >= quantity(limits["cpu"]):
        yield item.finding(
            "spec.containers[0].env",
            f"OMP_NUM_THREADS ({threads}) is not below the limit of {limits['cpu']} CPUs",
        )


def _fits(shared: Object, limits: Object) -> bool:
    size, limit = shared.get("sizeLimit"), limits.get("memory")
    return size is not None and limit is not None and quantity(size) < quantity(limit)


def _gpus(item: Served, gpus: int) -> Findings:
    engine = item.settings.engine.model_extra or {}
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    ranks = 1
    for name in sizes:
        ranks *= int(engine.get(name, 1))
    nodes = int(engine.get("nnodes", 1))
    if ranks != gpus * nodes:
        yield item.finding(
            "spec.containers[0].resources.limits",
            f"{gpus} GPUs on each of {nodes} nodes for {ranks} ranks of the engine",
        )


def files(overlay: Overlay) -> Findings:
    """Keys and a model that are named as files are mounted."""
    for item in served(overlay):
        mounts = [mount["mountPath"] for mount in item.pods.container.get("volumeMounts", ())]
        keys, model = item.settings.auth.keys_file, item.settings.engine.model
        for key, path in (("auth.keys_file", keys and str(keys)), ("engine.model", model)):
            if path and path.startswith("/") and not _below(path, mounts):
                yield item.finding("spec.containers[0].volumeMounts", f"{key}: no {path}")


def _below(path: str, mounts: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(mount) for mount in mounts)


def rollouts(overlay: Overlay) -> Findings:
    """A rollout can move, and takes no more than one pod at a time."""
    for found in overlay.of_kind("Deployment"):
        update = dig(found, "spec.strategy.rollingUpdate", {})
        if update.get("maxSurge") == 0 and update.get("maxUnavailable") == 0:
            yield overlay.finding(found, "spec.strategy.rollingUpdate", "nothing may change")
        for budget in _budgets_that_block(overlay, found):
            yield overlay.finding(
                budget, "spec.minAvailable", "a node under the last pod could not be drained"
            )


def _budgets_that_block(overlay: Overlay, found: Object) -> Iterator[Object]:
    single = dig(found, "spec.replicas", 1) == 1
    for budget in overlay.of_kind("PodDisruptionBudget"):
        if single and dig(budget, "spec.minAvailable") not in (None, 0):
            yield budget
