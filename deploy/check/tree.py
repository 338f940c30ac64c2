"""The directory: its overlays, rendered by kustomize, and its files."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deploy.check.findings import Finding
from deploy.check.objects import Object, Pods, pods_of, title

_RENDER_S = 60.0
# Ten times as fast, where PyYAML was built with it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SUFFIXES = frozenset((".yaml", ".yml", ".json"))


@dataclass(frozen=True)
class Overlay:
    """What `kubectl apply -k` would apply."""

    name: str
    objects: Sequence[Object]

    def of_kind(self, *kinds: str) -> Iterator[Object]:
        """Its objects of these kinds."""
        return (found for found in self.objects if found.get("kind") in kinds)

    def pods(self) -> Iterator[Pods]:
        """The pods that its objects make."""
        return (pods for found in self.objects for pods in pods_of(found))

    def find(self, kind: str, name: str) -> Object | None:
        """By kind and name."""
        return next((o for o in self.of_kind(kind) if o["metadata"]["name"] == name), None)

    def finding(self, found: Object, key: str, problem: str) -> Finding:
        """About one of its objects."""
        return Finding(self.name, title(found), key, problem)


@dataclass(frozen=True)
class Document:
    """One YAML document, or a JSON file, as it is in the tree."""

    name: str
    content: object


@dataclass(frozen=True)
class Tree:
    """All of a deploy/ directory.

    Attributes:
        overlays: what kustomize made of each, by name.
        documents: the YAML and JSON files.
        texts: the same files, as they are.
        findings: what could not be rendered or read.

    """

    root: Path
    overlays: Sequence[Overlay]
    documents: Sequence[Document] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[Finding] = ()


def read(root: Path, kubectl: Path, only: Sequence[str] = ()) -> Tree:
    """Render every overlay, and every component that none of them has, and read the files.

    Args:
        root: a deploy/ directory.
        kubectl: the program.
        only: names of overlays or components, as `overlays/gpu`; none: all.

    """
    findings: list[Finding] = []
    overlays: list[Overlay] = []
    directories = [root / "k8s" / name for name in only] or _with_lonely(root, _overlays(root))
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as threads:
        rendered = list(threads.map(lambda path: _render_any(path, root, kubectl), directories))
    for directory, result in zip(directories, rendered, strict=True):
        name = str(directory.relative_to(root / "k8s"))
        findings += (Finding(name, "", "components", why) for why in _discords(directory))
        if isinstance(result, str):
            findings.append(Finding(name, "", "kustomization.yaml", result))
        else:
            overlays.append(Overlay(name, result))
    texts = dict(_texts(root))
    documents: list[Document] = []
    for name, text in texts.items():
        try:
            documents += [Document(name, content) for content in load_all(text) if content]
        except yaml.YAMLError as error:
            findings.append(Finding(name, "", "", " ".join(str(error).split())))
    return Tree(root, overlays, documents, texts, findings)


def load_all(text: str) -> list[Any]:
    """The documents of a YAML text; JSON is YAML."""
    return list(yaml.load_all(text, Loader=_Loader))


def _overlays(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("k8s/overlays/*/kustomization.yaml"))


def components_of(directory: Path) -> Iterator[Path]:
    """The components that a kustomization names, and those that they name."""
    try:
        content = yaml.safe_load((directory / "kustomization.yaml").read_text("utf-8"))
    except (OSError, yaml.YAMLError):
        return  # kustomize says so too
    for name in (*content.get("components", ()), *content.get("resources", ())):
        path = (directory / name).resolve()
        if (path / "kustomization.yaml").is_file():
            yield path
            yield from components_of(path)


def _discords(directory: Path) -> Iterator[str]:
    """Components that do not go together, which the objects do not show, or not always."""
    components = {path.name: path for path in components_of(directory)}
    # kustomize gives up on what both bring along.
    if components.keys() >= {"hpa", "keda"}:
        yield "hpa and keda together: two autoscalers for one workload"
    if "multinode" in components:
        for name, path in components.items():
            # Before multinode in the list, its patch is lost without a word: keys, for one.
            if (path / "deployment.yaml").is_file() and name != "base":
                yield f"{name} patches the Deployment, which multinode takes away"


def _with_lonely(root: Path, overlays: Sequence[Path]) -> list[Path]:
    """The overlays, and the components that none of them has."""
    used = {path for overlay in overlays for path in components_of(overlay)}
    every = (path.parent for path in root.glob("k8s/components/*/kustomization.yaml"))
    return [*overlays, *sorted(path for path in every if path.resolve() not in used)]


def _render_any(directory: Path, root: Path, kubectl: Path) -> Sequence[Object] | str:
    if directory.parent.name == "components":
        return _render_component(directory, root, kubectl)
    return _render(directory, kubectl)


def _render_component(component: Path, root: Path, kubectl: Path) -> Sequence[Object] | str:
    """On top of the base, as an overlay of its own would have it."""
    with tempfile.TemporaryDirectory(prefix="deploy-check-") as scratch:
        at = Path(scratch).resolve()
        content = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "tidegate",
            "resources": [os.path.relpath(root.resolve() / "k8s" / "base", at)],
            "components": [os.path.relpath(component.resolve(), at)],
        }
        (at / "kustomization.yaml").write_text(yaml.safe_dump(content), "utf-8")
        return _render(at, kubectl)


def _render(directory: Path, kubectl: Path) -> Sequence[Object] | str:
    """The objects, or what kustomize has to say against it."""
    try:
        ran = subprocess.run(
            [kubectl, "kustomize", directory],
            capture_output=True,
            text=True,
            timeout=_RENDER_S,
            check=False,
        )
    except OSError as error:
        return f"{kubectl}: {error.strerror} (deploy/kubectl.sh fetches it, for x86_64)"
    if ran.returncode:
        return " ".join(ran.stderr.split()).removeprefix("error: ")
    return [found for found in load_all(ran.stdout) if found]


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*")):
        if path.suffix in _SUFFIXES and path.is_file():
            yield str(path.relative_to(root)), path.read_text("utf-8")
