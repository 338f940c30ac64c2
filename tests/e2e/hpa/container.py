"""A container of a shipped manifest, as a process of this machine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.hpa.probe import Probe
from tests.rig.server import Server

LISTENING = {"api": 19000, "ops": 19001}
"""In place of the container's own ports, which may be taken on this machine."""


@dataclass(frozen=True)
class Node:
    """What this machine puts in place of a container's surroundings.

    Attributes:
        configs: directory of each ConfigMap's files, by its name.
        overrides: settings of the service (`engine.model`) that win over the manifest's.

    """

    directory: Path
    configs: Mapping[str, Path]
    overrides: Mapping[str, str] = field(default_factory=dict)


class Container(Server):
    """The process of a pod's only container, listening on the pod's address."""

    def __init__(self, pod: Mapping[str, Any], address: str, node: Node) -> None:
        spec = pod["spec"]
        (self.spec,) = spec["containers"]
        self.name, self.address = str(self.spec["name"]), address
        scratch = node.directory / pod["metadata"]["name"]
        mounts = mounted(spec, scratch, node.configs)
        settings = {
            **node.overrides,
            "server.host": address,
            "server.port": str(LISTENING["api"]),
            "server.ops_port": str(LISTENING["ops"]),
        }
        command = [sys.executable, "-m", "app"]
        command += [placed(argument, mounts) for argument in self.spec.get("args", ())]
        command += [f"--{name}={value}" for name, value in settings.items()]
        log = node.directory / f"{pod['metadata']['name']}.log"
        super().__init__(command, LISTENING["api"], log, environment(self.spec, mounts))
        self.url = f"http://{address}:{LISTENING['api']}"
        self.ready_url = f"http://{address}:{LISTENING['ops']}{self.ready_path}"

    def probe(self, kind: str) -> Probe:
        """`startupProbe`, `readinessProbe` or `livenessProbe`."""
        return Probe.parse(self.spec[kind], LISTENING)


def mounted(spec: Mapping[str, Any], scratch: Path, configs: Mapping[str, Path]) -> dict[str, Path]:
    """The directory in place of each path that a ConfigMap or an empty volume is mounted at."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
    found = {}
    for mount in spec["containers"][0].get("volumeMounts", ()):
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            found[mount["mountPath"]] = configs[volume["configMap"]["name"]]
        elif "emptyDir" in volume and "medium" not in volume["emptyDir"]:
            found[mount["mountPath"]] = scratch / mount["name"]
            found[mount["mountPath"]].mkdir(parents=True, exist_ok=True)
    return found


def placed(text: str, mounts: Mapping[str, Path]) -> str:
    """A path inside the container, as the one on this machine; other text as it is."""
    for inside, outside in mounts.items():
        if text == inside or text.startswith(f"{inside}/"):
            return f"{outside}{text.removeprefix(inside)}"
    return text


def environment(container: Mapping[str, Any], mounts: Mapping[str, Path]) -> dict[str, str]:
    """The variables that have a value in the manifest; there are no secrets here."""
    given = {
        entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry
    }
    return {name: placed(value, mounts) for name, value in given.items()}


def hook_command(hook: Mapping[str, Any]) -> list[str] | None:
    """What a preStop hook runs, with this Python where it says `python`; None: it only sleeps."""
    command = hook.get("exec", {}).get("command")
    if not command:
        return None
    return [sys.executable if part in ("python", "python3") else part for part in command]
