"""Who finds and reaches whom: selectors, ports, policies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from deploy.check.findings import Finding, Findings
from deploy.check.objects import Object, Pods, dig, matches
from deploy.check.served import Served, served
from deploy.check.tree import Overlay, Tree

SOON: Final = frozenset(f"{seconds}s" for seconds in range(1, 16))
"""Intervals of scrapes that an autoscaler, who looks each 15 s, does not outrun."""

_SELECTORS: Final[Mapping[str, str]] = {
    "Service": "spec.selector",
    "PodDisruptionBudget": "spec.selector.matchLabels",
    "NetworkPolicy": "spec.podSelector.matchLabels",
    "PodMonitor": "spec.selector.matchLabels",
    "InferencePool": "spec.selector.matchLabels",
}
# They send requests or scrapes, and a worker answers neither.
_CALLERS: Final = frozenset(("Service", "PodMonitor", "InferencePool"))


def selectors(overlay: Overlay) -> Findings:
    """Each selector finds pods of the overlay; what calls them finds none that do not serve."""
    for found in overlay.of_kind(*_SELECTORS):
        key = _SELECTORS[found["kind"]]
        selected = _selected(overlay, found)
        if not selected:
            yield overlay.finding(found, key, f"{dig(found, key)} selects no pod")
        for pods in selected:
            if found["kind"] in _CALLERS and pods.works_only:
                yield overlay.finding(found, key, f"selects workers: {pods.path}")


def budgets(overlay: Overlay) -> Findings:
    """A budget that counts leaders counts their workers: the loss of one ends the group."""
    for found in overlay.of_kind("PodDisruptionBudget"):
        selected = _selected(overlay, found)
        owners = [pods.owner for pods in selected]
        for pods in overlay.pods():
            if pods.owner in owners and pods not in selected:
                key = _SELECTORS[found["kind"]]
                yield overlay.finding(found, key, f"leaves out {pods.path}")


def own_labels(overlay: Overlay) -> Findings:
    """A workload's selectors and its spread select its own pods."""
    for pods in overlay.pods():
        owner = pods.owner
        own = dig(owner, "spec.selector.matchLabels")
        if own is not None and not matches(own, pods.labels):
            yield overlay.finding(owner, "spec.selector", f"{own} is not in {dict(pods.labels)}")
        for spread in pods.spec.get("topologySpreadConstraints", ()):
            labels = dig(spread, "labelSelector.matchLabels", {})
            if not matches(labels, pods.labels):
                key = f"{pods.path}.spec.topologySpreadConstraints"
                yield overlay.finding(owner, key, f"{labels} is not in {dict(pods.labels)}")


def references(overlay: Overlay) -> Findings:
    """Accounts and ConfigMaps that are named are there."""
    for pods in overlay.pods():
        account = pods.spec.get("serviceAccountName")
        if account and not overlay.find("ServiceAccount", account):
            key = f"{pods.path}.spec.serviceAccountName"
            yield overlay.finding(pods.owner, key, f"there is no ServiceAccount {account}")
        for volume in pods.spec.get("volumes", ()):
            name = dig(volume, "configMap.name")
            if name and not overlay.find("ConfigMap", name):
                key = f"{pods.path}.spec.volumes.{volume['name']}"
                yield overlay.finding(pods.owner, key, f"there is no ConfigMap {name}")


def routes(overlay: Overlay) -> Findings:
    """A route's backends are there."""
    for found in overlay.of_kind("HTTPRoute"):
        for rule in dig(found, "spec.rules", []):
            for backend in rule.get("backendRefs", ()):
                kind, name = backend.get("kind", "Service"), backend["name"]
                if not overlay.find(kind, name):
                    key = "spec.rules.backendRefs"
                    yield overlay.finding(found, key, f"there is no {kind}/{name}")


def mounts(overlay: Overlay) -> Findings:
    """What is mounted is a volume, and secrets are directories, so that a change arrives."""
    for pods in overlay.pods():
        for mount in pods.container.get("volumeMounts", ()):
            key = f"{pods.path}.spec.containers[0].volumeMounts.{mount['mountPath']}"
            volume = pods.volume(mount["name"])
            if volume is None:
                yield overlay.finding(pods.owner, key, f"there is no volume {mount['name']}")
            elif "subPath" in mount and ("secret" in volume or "configMap" in volume):
                yield overlay.finding(pods.owner, key, "with subPath a change never arrives")


def callers(overlay: Overlay) -> Findings:
    """Services and pools send to the API's port, monitors scrape the operational one."""
    for item in (item for item in served(overlay) if not item.pods.works_only):
        server = item.settings.server
        for found, key, port in _called(overlay, item):
            wanted = server.ops_port if found["kind"] == "PodMonitor" else server.port
            if item.pods.port(port) != wanted:
                yield overlay.finding(
                    found, key, f"{port!r} is not the port {wanted} of {item.pods.owner['kind']}"
                )


def _called(overlay: Overlay, item: Served) -> Iterator[tuple[Object, str, str | int]]:
    """The objects that call these pods, and at which port."""
    for found in overlay.of_kind(*_CALLERS):
        if item.pods not in _selected(overlay, found):
            continue
        match found["kind"]:
            case "Service":
                for port in dig(found, "spec.ports", []):
                    yield found, "spec.ports.targetPort", port.get("targetPort", port["port"])
            case "PodMonitor":
                for endpoint in dig(found, "spec.podMetricsEndpoints", []):
                    yield found, "spec.podMetricsEndpoints.port", endpoint.get("port", "")
            case _:
                for port in dig(found, "spec.targetPorts", []):
                    yield found, "spec.targetPorts", port["number"]


def scrapes(overlay: Overlay) -> Findings:
    """A monitor asks for /metrics, as often as an autoscaler looks."""
    for found in overlay.of_kind("PodMonitor"):
        for endpoint in dig(found, "spec.podMetricsEndpoints", []):
            if endpoint.get("path", "/metrics") != "/metrics":
                key = "spec.podMetricsEndpoints.path"
                yield overlay.finding(found, key, f"{endpoint['path']} is not /metrics")
            # Prometheus' own interval, where an endpoint has none.
            interval, timeout = endpoint.get("interval", "30s"), endpoint.get("scrapeTimeout", "1s")
            if interval not in SOON:
                key = "spec.podMetricsEndpoints.interval"
                yield overlay.finding(found, key, f"{interval}: an autoscaler looks each 15 s")
            elif timeout not in SOON or int(timeout[:-1]) > int(interval[:-1]):
                key = "spec.podMetricsEndpoints.scrapeTimeout"
                yield overlay.finding(found, key, f"{timeout} is above the interval of {interval}")


def policies(overlay: Overlay) -> Findings:
    """A policy's ports are ports of its pods, and together they let API and metrics in."""
    for item in (item for item in served(overlay) if not item.pods.works_only):
        open_ports: set[int] = set()
        chosen = [p for p in overlay.of_kind("NetworkPolicy") if item.pods in _selected(overlay, p)]
        for policy in chosen:
            for port in _ingress(policy):
                number = item.pods.port(port)
                if number is None:
                    problem = f"{port!r} is no port of {item.pods.owner['kind']}"
                    yield overlay.finding(policy, "spec.ingress.ports", problem)
                else:
                    open_ports.add(number)
        yield from _closed(overlay, item, chosen, open_ports)


def _closed(
    overlay: Overlay, item: Served, chosen: Sequence[Object], open_ports: set[int]
) -> Findings:
    server = item.settings.server
    for number in (server.port, server.ops_port):
        if chosen and number is not None and number not in open_ports:
            yield overlay.finding(chosen[0], "spec.ingress", f"nobody may reach port {number}")


def _ingress(policy: Object) -> Iterator[str | int]:
    for rule in dig(policy, "spec.ingress", []):
        for port in rule.get("ports", ()):
            yield port["port"]


def _selected(overlay: Overlay, found: Object) -> list[Pods]:
    selector = dig(found, _SELECTORS[found["kind"]], {})
    return [pods for pods in overlay.pods() if matches(selector, pods.labels)]


def picker(tree: Tree) -> Findings:
    """The endpoint picker reads metrics where the pods of its pool have them."""
    ops_ports = {
        item.settings.server.ops_port
        for overlay in tree.overlays
        if any(overlay.of_kind("InferencePool"))
        for item in served(overlay)
    }
    for document in tree.documents:
        port = dig(document.content, "flags.model-server-metrics-port")
        if port is not None and ops_ports and {port} != ops_ports:
            yield Finding(
                document.name,
                "",
                "flags.model-server-metrics-port",
                f"{port} is not the pods' {', '.join(map(str, ops_ports))}",
            )
