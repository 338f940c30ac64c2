"""Custom kinds against their models, and no key that a model does not know.

The models of cloudcoil are made from the kinds' own definitions, but let unknown keys through: a
walk over their fields finds those.
"""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Union, get_args, get_origin

from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus
from pydantic import BaseModel, ValidationError

from deploy.check import models
from deploy.check.findings import Findings
from deploy.check.objects import Object, dig
from deploy.check.schemas import is_builtin
from deploy.check.tree import Overlay

MODELS: Final[Mapping[tuple[str, str], type[BaseModel]]] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): prometheus.PodMonitor,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): prometheus.ServiceMonitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): prometheus.PrometheusRule,
    ("keda.sh/v1alpha1", "ScaledObject"): keda.ScaledObject,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): keda.TriggerAuthentication,
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): models.LeaderWorkerSet,
    ("inference.networking.k8s.io/v1", "InferencePool"): models.InferencePool,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): models.HTTPRoute,
}

NEWER: Final[Mapping[str, frozenset[str]]] = {
    # The model is that of KEDA 2.16; this came with 2.17.
    "ScaledObject.spec.fallback.behavior": frozenset(
        ("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower")
    ),
}
"""Keys that a model is too old for, and what they may be."""


def objects(overlay: Overlay) -> Findings:
    """Every object of a custom kind fits its model and has no key besides."""
    for found in overlay.objects:
        if not is_builtin(found):
            for key, problem in errors(found):
                yield overlay.finding(found, key, problem)


def errors(found: Object) -> Iterator[tuple[str, str]]:
    """The key and the trouble of everything that does not fit."""
    version, kind = found.get("apiVersion", ""), found.get("kind", "")
    model = MODELS.get((version, kind))
    if model is None:
        yield "kind", f"neither a schema nor a model for {kind} of {version}"
        return
    for key in unknown(model, found):
        allowed = NEWER.get(f"{kind}.{key}")
        if allowed is None:
            yield key, f"unknown key in {kind} of {version}"
        elif (value := dig(found, key)) not in allowed:
            yield key, f"{value!r} is none of {', '.join(sorted(allowed))}"
    try:
        model.model_validate(found)
    except ValidationError as error:
        for problem in error.errors():
            # Said above, with the key as it is written.
            if problem["type"] != "extra_forbidden":
                yield ".".join(map(str, problem["loc"])), problem["msg"]


def unknown(annotation: Any, value: Any, path: str = "") -> Iterator[str]:
    """The paths of all keys in a value that its type has no field for."""
    if isinstance(value, list):
        for index, inner in enumerate(value):
            for item in _arguments_of(annotation, list):
                yield from unknown(item, inner, f"{path}[{index}]")
    elif isinstance(value, dict):
        if (model := _model_of(annotation)) is not None:
            yield from _unknown_fields(model, value, path)
        else:
            for item in _arguments_of(annotation, dict):
                for key, inner in value.items():
                    yield from unknown(item, inner, f"{path}.{key}")


def _unknown_fields(model: type[BaseModel], value: Object, path: str) -> Iterator[str]:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, inner in value.items():
        inner_path = f"{path}.{key}".removeprefix(".")
        if key in fields:
            yield from unknown(fields[key].annotation, inner, inner_path)
        elif not fields.get("root"):
            yield inner_path


def _members(annotation: Any) -> Iterator[Any]:
    """The types of a union, without what only decorates them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def _arguments_of(annotation: Any, container: type) -> Iterator[Any]:
    """The types of what a list or a mapping holds."""
    for member in _members(annotation):
        if get_origin(member) is container:
            yield get_args(member)[-1]
