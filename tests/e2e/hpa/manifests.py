"""The shipped manifests, and the little that Kubernetes 1.20 needs otherwise.

What is changed is changed here and nowhere else: the HPA's API version, and the preStop hook, whose
`sleep` 1.20 does not know, so that the kubelet here is given it directly.
"""

import copy
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.hpa.api import Object
from tests.rig.server import ROOT

KUSTOMIZE = ROOT / "deploy" / "k8s"
HPA_OF_1_20 = "autoscaling/v2beta2"


@dataclass(frozen=True)
class Shipped:
    """What an overlay renders to, as far as it is applied here.

    Attributes:
        hook: the container's preStop hook.
        plain: ConfigMaps and Services, applied as they are.

    """

    deployment: Object
    hook: Object
    hpa: Object
    monitor: Object
    plain: tuple[Object, ...]

    @property
    def namespace(self) -> str:
        return str(self.deployment["metadata"]["namespace"])

    @property
    def configs(self) -> list[Object]:
        return [item for item in self.plain if item["kind"] == "ConfigMap"]


def rendered(overlay: str) -> list[Object]:
    """The objects of `deploy/k8s/overlays/…`."""
    kubectl = _printed(str(ROOT / "deploy" / "kubectl.sh"))
    text = _printed(kubectl, "kustomize", str(KUSTOMIZE / "overlays" / overlay))
    return [item for item in yaml.safe_load_all(text) if item]


def _printed(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def shipped(objects: Sequence[Object]) -> Shipped:
    """The parts of an overlay that has the `hpa` component, ready for 1.20."""
    by_kind = {item["kind"]: item for item in objects}
    deployment, hook = without_hook(by_kind["Deployment"])
    hpa = by_kind["HorizontalPodAutoscaler"] | {"apiVersion": HPA_OF_1_20}
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    mounted = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    plain = tuple(
        item
        for item in objects
        if item["kind"] == "Service"
        or (item["kind"] == "ConfigMap" and item["metadata"]["name"] in mounted)
    )
    return Shipped(deployment, hook, hpa, by_kind["PodMonitor"], plain)


def without_hook(deployment: Object) -> tuple[Object, Object]:
    """The Deployment without its container's preStop hook, and the hook."""
    bare = copy.deepcopy(deployment)
    (container,) = bare["spec"]["template"]["spec"]["containers"]
    return bare, container.pop("lifecycle", {}).get("preStop", {})


def only(parts: Shipped, metric: str) -> Shipped:
    """Scaled on one of its metrics alone: what the shipped HPA is compared with."""
    hpa = copy.deepcopy(parts.hpa)
    kept = [m for m in hpa["spec"]["metrics"] if m["pods"]["metric"]["name"] == metric]
    if not kept:
        raise KeyError(f"the HPA has no metric {metric}")
    hpa["spec"]["metrics"] = kept
    return replace(parts, hpa=hpa)


def quickened(parts: Shipped, factor: float) -> Shipped:
    """With every window and period of its behaviour shorter by this factor, and nothing else."""
    hpa = copy.deepcopy(parts.hpa)
    for direction in hpa["spec"]["behavior"].values():
        window = direction.get("stabilizationWindowSeconds", 0)
        direction["stabilizationWindowSeconds"] = math.ceil(window / factor)
        for policy in direction["policies"]:
            policy["periodSeconds"] = math.ceil(policy["periodSeconds"] / factor)
    return replace(parts, hpa=hpa)


def capped(parts: Shipped, most: int) -> Shipped:
    """With no more replicas than that."""
    hpa = copy.deepcopy(parts.hpa)
    hpa["spec"]["maxReplicas"] = most
    return replace(parts, hpa=hpa)


def settings(parts: Shipped) -> dict[str, Any]:
    """The service's settings of the overlay's only ConfigMap."""
    (config,) = parts.configs
    (text,) = config["data"].values()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def written(configs: Sequence[Object], directory: Path) -> Mapping[str, Path]:
    """The files of each ConfigMap, in a directory of its own."""
    places = {}
    for config in configs:
        places[config["metadata"]["name"]] = place = directory / config["metadata"]["name"]
        place.mkdir(parents=True)
        for name, text in config["data"].items():
            (place / name).write_text(text)
    return places


def targets(hpa: Object) -> dict[str, float]:
    """The target of each metric, for each pod."""
    metrics = (metric["pods"] for metric in hpa["spec"]["metrics"])
    return {m["metric"]["name"]: float(m["target"]["averageValue"]) for m in metrics}
