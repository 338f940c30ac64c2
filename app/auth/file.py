"""Reads a keys file; whatever is wrong with it is one line that says where.

No line shows a value: a key that somebody wrote where its hash belongs must not end in a log.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any, Final

import yaml
from pydantic import ValidationError

from app.auth.keys import Key, Ring, hash_of
from app.settings import SettingsError, yamltext
from app.settings.errors import nearest
from app.settings.yamltext import Dumper, Loader, compose, construct, refuse_duplicates

_LIST: Final = "keys"
_MAX_SHOWN_CHARS: Final = 100
_FIELD_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,32}")


@dataclass(frozen=True)
class Entry:
    """One item of the list, as it was read, and where."""

    data: Any
    number: int
    origin: str

    @property
    def label(self) -> str:
        name = self.data.get("name") if isinstance(self.data, Mapping) else None
        known = isinstance(name, str) and len(name) <= _MAX_SHOWN_CHARS
        return f"key {name!r}" if known else f"entry {self.number}"

    def error(self, reason: str, suggestion: str | None = None) -> SettingsError:
        return SettingsError(f"{self.label}: {reason}", origin=self.origin, suggestion=suggestion)


def read(path: Path) -> str:
    """The text of a keys file.

    Raises:
        SettingsError: it cannot be read.

    """
    return yamltext.read(path, "auth.keys_file")


def parse(text: str, path: Path) -> Ring:
    """The keys that a text lists; `path` is for the messages.

    Raises:
        SettingsError: it is no list of keys, or two of them cannot be told apart.

    """
    entries = list(_entries(text, path))
    if not entries:
        raise SettingsError("there is no key in the file", origin=str(path))
    keys = [key_of(entry) for entry in entries]
    _refuse_twins(zip(entries, keys, strict=True))
    return Ring(keys)


def key_of(entry: Entry) -> Key:
    """The key that an entry describes; a field that is null is not set.

    Raises:
        SettingsError: it describes none.

    """
    if not isinstance(entry.data, Mapping):
        raise entry.error("must be a mapping with name and sha256")
    given = {field: value for field, value in entry.data.items() if value is not None}
    for field in given:
        if field not in Key.model_fields:
            raise _unknown(entry, str(field))
    try:
        return Key.model_validate(given)
    except ValidationError as error:
        # Not chained: pydantic's own message shows the values.
        field = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
    if field not in given:
        raise entry.error(f"{field} is missing")
    raise entry.error(f"{field} must be {Key.model_fields[field].description}")


def entry_of(name: str, key: str) -> str:
    """What a keys file has to say of a key, to be put below `keys:`.

    Raises:
        SettingsError: no key can have such a name.

    """
    data = {"name": name, "sha256": hash_of(key)}
    key_of(Entry(data, 1, "command line --name"))
    text: str = yaml.dump([data], Dumper=Dumper, sort_keys=False, width=1000)
    return indent(text.rstrip("\n"), "  ")


def _unknown(entry: Entry, field: str) -> SettingsError:
    # What is no name of a field may be a key in the wrong place.
    if not _FIELD_NAME.fullmatch(field):
        return entry.error(f"may have the fields {', '.join(Key.model_fields)} only")
    return entry.error(f"unknown field {field}", nearest(field, Key.model_fields))


def _entries(text: str, path: Path) -> Iterator[Entry]:
    try:
        loader = Loader(text)
        root = compose(loader)
        listed = _list_in(root, path)
        for number, node in enumerate(listed.value if listed else (), 1):
            origin = f"{path} line {node.start_mark.line + 1}"
            yield Entry(construct(loader, node, keep_text=False), number, origin)
    except yaml.YAMLError as error:
        raise _not_yaml(error, path) from None


def _list_in(root: yaml.Node | None, path: Path) -> yaml.SequenceNode | None:
    """The node of the list: below `keys`, or the whole document."""
    node = root
    if isinstance(root, yaml.MappingNode):
        refuse_duplicates(root)
        for name, value in root.value:
            if name.value != _LIST:
                line = name.start_mark.line + 1
                raise SettingsError(
                    f"the file may have `{_LIST}:` at its top, and nothing beside it",
                    origin=f"{path} line {line}",
                )
            node = value
    if node is None or node.tag.endswith(":null"):
        return None
    if not isinstance(node, yaml.SequenceNode):
        raise SettingsError(f"the file must have a list of keys below `{_LIST}:`", origin=str(path))
    return node


def _refuse_twins(keys: Iterable[tuple[Entry, Key]]) -> None:
    names: dict[str, Entry] = {}
    digests: dict[bytes, Entry] = {}
    for entry, key in keys:
        if key.name in names:
            raise entry.error(f"the name is taken ({names[key.name].origin})")
        if key.digest in digests:
            raise entry.error(f"the sha256 is also that of {digests[key.digest].label}")
        names[key.name] = digests[key.digest] = entry


def _not_yaml(error: yaml.YAMLError, path: Path) -> SettingsError:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return SettingsError("not valid YAML", origin=str(path))
    # A name or a hash that begins with * or ! is read as an alias or a tag, and quoted back.
    problem = re.sub(r"\b(alias|anchor|tag|tag handle) '.*'", r"\1", error.problem or "")
    line = error.problem_mark.line + 1
    return SettingsError(f"not valid YAML: {problem}", origin=f"{path} line {line}")
