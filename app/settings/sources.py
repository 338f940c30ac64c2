"""Where values come from: a YAML file, the environment, the command line."""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final

import yaml

from app.settings import schema, yamltext
from app.settings.errors import SettingsError, nearest, unknown_key

PREFIX: Final = "TIDEGATE_"
INTERNAL_PREFIX: Final = "TIDEGATE_INTERNAL_"

# Kubernetes describes every Service of the namespace to every pod, in Docker's old manner: the
# Services `tidegate` and `tidegate-metrics` give TIDEGATE_PORT=tcp://10.0.0.1:8000 and
# TIDEGATE_METRICS_SERVICE_HOST. The values tell them from a mistake: TIDEGATE_PORT=8000.
_LINK_URL: Final = re.compile(r"(?:tcp|udp|sctp)://")
_LINK_URL_NAME: Final = re.compile(r"TIDEGATE_(?:[A-Z0-9]+_)*PORT(?:_\d+_(?:TCP|UDP|SCTP))?")
_LINK_PART_NAME: Final = re.compile(
    r"TIDEGATE_(?:[A-Z0-9]+_)*"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_+[A-Z0-9]+)*|PORT_\d+_(?:TCP|UDP|SCTP)_(?:PROTO|PORT|ADDR))"
)


@dataclass(frozen=True)
class Entry:
    """One value: its path (group, key, deeper keys), and in words where it was found."""

    path: tuple[str, ...]
    value: Any
    origin: str


def from_file(path: Path) -> Iterator[Entry]:
    """The values of a YAML file; an empty one has none. Raises SettingsError."""
    text = yamltext.read(path, "command line --config")
    try:
        loader = yamltext.Loader(text)
        root = yamltext.compose(loader)
        for group, node in _items(loader, root, str(path), "the file"):
            name = group.value
            if name not in schema.groups():
                raise unknown_key(name, _at(path, group), [*schema.groups(), *schema.keys()])
            for key, value in _items(loader, node, _at(path, group), name):
                keep_text = schema.takes((name, key.value), str) or schema.takes(
                    (name, key.value), list
                )
                parsed = yamltext.construct(loader, value, keep_text=keep_text)
                yield Entry((name, key.value), parsed, _at(path, key))
    except yaml.YAMLError as error:
        raise _unreadable(path, error) from None


def from_environ(environ: Mapping[str, str]) -> Iterator[Entry]:
    """The values of `TIDEGATE_GROUP__KEY` variables, in any case. Raises SettingsError."""
    for name in sorted(environ):
        if is_setting(name, environ[name]):
            path = _variable_path(name)
            yield Entry(path, _from_text(environ[name], path), f"environment variable {name}")


def from_argv(argv: Sequence[str]) -> tuple[Path | None, list[Entry]]:
    """The file of `--config` if there is one, and the values of `--group.key` options."""
    config: Path | None = None
    entries: list[Entry] = []
    for name, text in _options(argv):
        if name == "config":
            if config is not None:
                raise SettingsError("--config is given twice", origin="command line")
            config = Path(text)
        else:
            path = _option_path(name)
            entries.append(Entry(path, _from_text(text, path), f"command line --{name}"))
    return config, entries


def is_setting(name: str, value: str) -> bool:
    """Whether an environment variable is meant for us: not a marker, not a service link."""
    upper = name.upper()
    if not upper.startswith(PREFIX) or upper.startswith(INTERNAL_PREFIX):
        return False
    if _LINK_URL.match(value) and _LINK_URL_NAME.fullmatch(upper):
        return False
    return _LINK_PART_NAME.fullmatch(upper) is None


def _from_text(text: str, path: tuple[str, ...]) -> Any:
    is_list = schema.takes(path, list)
    if is_list and text.lstrip().startswith("["):
        return yamltext.parse(text, keep_text=True)
    if schema.takes(path, str):
        return None if text == "null" and schema.takes(path, NoneType) else text
    if is_list:
        return [part.strip() for part in text.split(",") if part.strip()]
    return yamltext.parse(text)


def _variable_path(name: str) -> tuple[str, ...]:
    path = tuple(name[len(PREFIX) :].lower().split("__"))
    if len(path) > 1:
        return path
    key = nearest(path[0], schema.keys())
    raise SettingsError(
        f"unknown environment variable {name}",
        suggestion=PREFIX + key.upper().replace(".", "__") if key else None,
    )


def _option_path(name: str) -> tuple[str, ...]:
    # `--engine.max-num-seqs` is how vLLM's own command line spells it.
    group, _, rest = name.partition(".")
    key, dot, deeper = rest.partition(".")
    path = (group.replace("-", "_"), *([key.replace("-", "_")] if rest else []))
    return (*path, *deeper.split(".")) if dot else path


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = deque(argv)
    while words:
        word = words.popleft()
        if not word.startswith("--") or word == "--":
            # The word itself may be half of a secret, so only its place is told.
            raise SettingsError(
                f"argument {len(argv) - len(words)} is not an option; write --group.key value",
                origin="command line",
            )
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise SettingsError(
                    f"{name} has no value; write --{name} value", origin="command line"
                )
            text = words.popleft()
        yield name, text


def _items(
    loader: yamltext.Loader, node: yaml.Node | None, origin: str, what: str
) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    # A group whose keys are all commented out is null, and so is an empty file.
    if node is None or node.tag.endswith(":null"):
        return
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError(f"{what} must be a mapping of keys", origin=origin)
    yamltext.refuse_duplicates(node)
    loader.flatten_mapping(node)
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{what} has a key that is no name", origin=origin)
        yield key, value


def _at(path: Path, node: yaml.Node) -> str:
    return f"{path} line {node.start_mark.line + 1}"


def _unreadable(path: Path, error: yaml.YAMLError) -> SettingsError:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return SettingsError("not valid YAML", origin=str(path))
    problem = error.problem or "not valid YAML"
    if "'\\t'" in problem:
        problem = "tabs cannot indent YAML, use spaces"
    elif not isinstance(error, yamltext.DuplicateKeyError):
        # A secret that begins with * or ! is read as an alias or a tag, and quoted back.
        problem = re.sub(r"\b(alias|anchor|tag|tag handle) '.*'", r"\1", problem)
    return SettingsError(problem, origin=f"{path} line {error.problem_mark.line + 1}")
