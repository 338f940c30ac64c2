"""What keys exist and what they take, read off the models."""

import types
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from app.settings.groups import Group
from app.settings.model import Settings

_NAMES: Final = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    type(None): "none",
}


def groups() -> dict[str, type[Group]]:
    """Every group by its name, in the order of the contract."""
    return {
        name: info.annotation
        for name, info in Settings.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, Group)
    }


def keys() -> dict[str, FieldInfo]:
    """Every declared key by its dotted name."""
    return {
        f"{group}.{name}": info
        for group, model in groups().items()
        for name, info in model.model_fields.items()
    }


def is_open(group: str) -> bool:
    """Whether a group takes keys that are not declared here."""
    return groups()[group].model_config.get("extra") == "allow"


def exists(path: tuple[str, ...]) -> bool:
    """Whether a path (group, key, and for undeclared keys anything below) may hold a value."""
    group, *rest = path
    if group not in groups() or not rest or not all(rest):
        return False
    if f"{group}.{rest[0]}" in keys():
        return len(rest) == 1
    return is_open(group)


def takes(path: tuple[str, ...], kind: type) -> bool:
    """Whether the declared key accepts this kind (str, list, NoneType); undeclared: False.

    Paths and names to choose from count as str, tuples as list.
    """
    info = keys().get(".".join(path))
    return info is not None and kind in _kinds(info.annotation)


def type_name(annotation: Any) -> str:
    """An annotation in words, as it is shown to an operator: `an integer or none`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(args[0])
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(arg) for arg in args)
    if origin in (list, tuple):
        return f"a list of {type_name(args[0]).removeprefix('a ')}s"
    return _NAMES.get(annotation, str(annotation))


def _kinds(annotation: Any) -> set[type]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(args[0])
    if origin is Literal:
        return {type(arg) for arg in args}
    if origin in (Union, types.UnionType):
        return {kind for arg in args for kind in _kinds(arg)}
    if origin in (list, tuple):
        return {list}
    return {str if annotation is Path else annotation}
