"""Kubernetes objects as plain data, and the pods that they make."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Object: TypeAlias = dict[str, Any]

TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Deployment": ("spec.template",),
    "StatefulSet": ("spec.template",),
    "DaemonSet": ("spec.template",),
    "Job": ("spec.template",),
    "LeaderWorkerSet": (
        "spec.leaderWorkerTemplate.leaderTemplate",
        "spec.leaderWorkerTemplate.workerTemplate",
    ),
}
"""Where a kind has the pods that it makes."""


def dig(value: Any, path: str, default: Any = None) -> Any:
    """What is at a dotted path of mappings, or the default."""
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value


def title(found: Object) -> str:
    """Kind and name, as kubectl writes them."""
    return f"{found.get('kind')}/{dig(found, 'metadata.name')}"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that is neither a mapping nor a list, with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


@dataclass(frozen=True)
class Pods:
    """The pods that an object makes from one template."""

    owner: Object
    path: str
    template: Object

    @property
    def labels(self) -> Mapping[str, str]:
        """What selectors see."""
        found: dict[str, str] = dig(self.template, "metadata.labels", {})
        return found

    @property
    def spec(self) -> Object:
        """The pod's."""
        found: Object = self.template["spec"]
        return found

    @property
    def container(self) -> Object:
        """The first, which is the service's."""
        found: Object = self.spec["containers"][0]
        return found

    @property
    def works_only(self) -> bool:
        """Whether it is a part of an engine and serves nobody: `python -m app worker`."""
        return list(self.container.get("args", ()))[:1] == ["worker"]

    def port(self, name_or_number: str | int) -> int | None:
        """The number of a container port, as a Service or a probe looks it up."""
        if isinstance(name_or_number, int):
            return name_or_number
        ports = {port.get("name"): port["containerPort"] for port in self.container_ports}
        return ports.get(name_or_number)

    @property
    def container_ports(self) -> list[Object]:
        """Of the service's container."""
        return list(self.container.get("ports", ()))

    def mount(self, path: str) -> Object | None:
        """The volume that is mounted at a path."""
        for mount in self.container.get("volumeMounts", ()):
            if mount["mountPath"] == path:
                return self.volume(mount["name"])
        return None

    def volume(self, name: str) -> Object | None:
        """By its name."""
        volumes = self.spec.get("volumes", ())
        return next((volume for volume in volumes if volume["name"] == name), None)


def pods_of(found: Object) -> Iterator[Pods]:
    """One for each template of an object that makes pods."""
    for path in TEMPLATES.get(found.get("kind", ""), ()):
        template = dig(found, path)
        if isinstance(template, dict) and dig(template, "spec.containers"):
            yield Pods(found, path, template)


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether labels have all that a selector asks for."""
    return all(labels.get(key) == value for key, value in selector.items())
