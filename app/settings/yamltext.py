"""YAML as the settings read it: safe, each key once, and no text that turns into something else."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from app.settings.errors import SettingsError

_TAG: Final = "tag:yaml.org,2002:"
_STR: Final = _TAG + "str"
_NULL: Final = _TAG + "null"

# YAML 1.1 reads 2024-01-01 as a date, 12:30 as 750 and 0123 as 83: a git revision or a model
# name must survive, so these stay text. And 1e-5, which 1.1 reads as text, is a number.
_REPLACED: Final = frozenset(_TAG + name for name in ("timestamp", "int", "float", "value"))
_INT: Final = re.compile(r"^(?:[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+)$")
_FLOAT: Final = re.compile(
    r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9]+[eE][-+][0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_PLAIN_TAGS: Final = ("null", "bool", "int", "float", "str", "seq", "map")


def read(path: Path, origin: str) -> str:
    """The text of a YAML file that `origin` names.

    Raises:
        SettingsError: it cannot be read.

    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text, at byte {error.start}"
    except FileNotFoundError:
        reason = "no such file"
    except IsADirectoryError:
        reason = "is a directory, not a file"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except ValueError:
        reason = "is not a file name"
    raise SettingsError(f"{path}: {reason}", origin=origin)


class DuplicateKeyError(yaml.MarkedYAMLError):
    """A mapping has the same key twice: the first value would be lost without a word."""


class Loader(yaml.SafeLoader):
    """SafeLoader for plain data only, which refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As SafeLoader, with duplicate keys refused."""
        refuse_duplicates(node)
        return super().construct_mapping(node, deep=deep)


# PyYAML is configured by tables on the class.
Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] not in _REPLACED]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _PLAIN_TAGS
}
Loader.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))
Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))


class Dumper(yaml.SafeDumper):
    """SafeDumper that quotes a text which this loader or YAML 1.1 would read as something else."""


Dumper.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
        *Loader.yaml_implicit_resolvers.get(first, []),
    ]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *Loader.yaml_implicit_resolvers}
}


def refuse_duplicates(node: yaml.MappingNode) -> None:
    """Raises a marked YAML error at the second of two equal keys."""
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in seen:
            raise DuplicateKeyError(
                problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
            )
        seen.add((key.tag, key.value))


def compose(loader: Loader) -> yaml.Node | None:
    """The root node of the only document; None for an empty text. Raises yaml.YAMLError."""
    try:
        return loader.get_single_node()
    except RecursionError:
        raise yaml.YAMLError from None


def construct(loader: Loader, node: yaml.Node, *, keep_text: bool) -> Any:
    """The value of a node; with `keep_text`, scalars and list items stay as they are written.

    Raises yaml.YAMLError.
    """
    try:
        return loader.construct_object(_as_text(node) if keep_text else node, deep=True)
    except (ValueError, KeyError, RecursionError):
        # Of int(), of an explicit tag that does not fit (`!!bool x`), of nesting without end.
        raise yaml.MarkedYAMLError(
            problem="value cannot be read", problem_mark=node.start_mark
        ) from None


def parse(text: str, *, keep_text: bool = False) -> Any:
    """A value from the command line or the environment.

    Brackets, braces and quotes are YAML (and so JSON); anything else is one scalar. What is not
    readable is the text itself: a chat template begins with `{%` and is no YAML.
    """
    bare = text.strip()
    try:
        value = _flow(bare, keep_text=keep_text) if bare[:1] in tuple("[{\"'") else _scalar(bare)
    except yaml.YAMLError:
        return text
    return text if value == bare else value


def _flow(text: str, *, keep_text: bool) -> Any:
    loader = Loader(text)
    node = compose(loader)
    return None if node is None else construct(loader, node, keep_text=keep_text)


def _scalar(text: str) -> Any:
    if not text:
        return text
    loader = Loader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return construct(loader, yaml.ScalarNode(tag, text), keep_text=False)


def _as_text(node: yaml.Node) -> yaml.Node:
    # New nodes: the old one may have an alias somewhere else.
    if isinstance(node, yaml.ScalarNode) and node.tag != _NULL:
        return yaml.ScalarNode(_STR, node.value, node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode):
        items = [_as_text(item) for item in node.value]
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    return node
