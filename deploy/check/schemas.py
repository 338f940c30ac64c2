"""Built-in kinds against the API server's own schemas, as kubernetes-validate has them.

Its command reads a schema of some megabytes for each object; here they are read once.
"""

import functools
import importlib.resources
import json
from collections.abc import Iterator
from typing import Any, Final

from jsonschema import Draft202012Validator, ValidationError
from referencing import Registry, Resource

from deploy.check.findings import Findings
from deploy.check.objects import Object, Pods, title
from deploy.check.tree import Overlay

VERSION: Final = "v1.37.0-local-strict"
"""Of Kubernetes; strict: unknown keys are errors."""


def objects(overlay: Overlay) -> Findings:
    """Every object of a built-in kind fits its schema."""
    for found in overlay.objects:
        if is_builtin(found):
            for key, problem in errors(found):
                yield overlay.finding(found, key, problem)


def templates(overlay: Overlay) -> Findings:
    """The pods of custom resources are pods as any: they fit the pod's schema."""
    for pods in overlay.pods():
        if not is_builtin(pods.owner):
            for key, problem in errors(_as_template(pods)):
                inner = key.removeprefix("template").removeprefix(".")
                yield overlay.finding(pods.owner, f"{pods.path}.{inner}", problem)


def is_builtin(found: Object) -> bool:
    """Whether there is a schema for it."""
    return _validator(_name(found)) is not None


def errors(found: Object) -> Iterator[tuple[str, str]]:
    """The key and the trouble of everything that does not fit."""
    validator = _validator(_name(found))
    if validator is None:
        yield "kind", f"there is no schema for {title(found)}"
        return
    for error in validator.iter_errors(found):
        yield from _told(error)


def _told(error: ValidationError) -> Iterator[tuple[str, str]]:
    # Of alternatives, the one that comes nearest says most.
    if error.context:
        best = min(error.context, key=lambda inner: -len(inner.absolute_path))
        yield from _told(best)
        return
    yield _path(error), error.message


def _path(error: ValidationError) -> str:
    path = ""
    for part in error.absolute_path:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _as_template(pods: Pods) -> Object:
    metadata = {"name": "template"}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": metadata,
        "template": pods.template,
    }


def _name(found: Object) -> str:
    """The file of a schema: the kind, the first word of the API group, and the version."""
    group, _, version = str(found.get("apiVersion", "")).rpartition("/")
    parts = [str(found.get("kind", "")).lower(), group.partition(".")[0], version]
    return "-".join(part for part in parts if part)


@functools.cache
def _validator(name: str) -> Draft202012Validator | None:
    file = _directory() / f"{name}.json"
    if not file.is_file():
        return None
    schema = json.loads(file.read_text("utf-8"))
    registry = Resource.from_contents(schema) @ _definitions()
    return Draft202012Validator(schema, registry=registry)


@functools.cache
def _definitions() -> "Registry[Any]":
    definitions = json.loads((_directory() / "_definitions.json").read_text("utf-8"))
    registry: Registry[Any] = Resource.from_contents(definitions) @ Registry()
    return registry


@functools.cache
def _directory() -> importlib.resources.abc.Traversable:
    return importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema" / VERSION
