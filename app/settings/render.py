"""The settings for people: the effective values, and the table of all keys."""

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from app.settings import schema
from app.settings.model import Settings
from app.settings.secrets import masked
from app.settings.yamltext import Dumper


def dump(settings: Settings) -> str:
    """The effective settings as YAML that `--config` can read again, with secrets masked."""
    values = {name: _values(getattr(settings, name)) for name in schema.groups()}
    values["admission"]["max_pending"] = settings.effective_max_pending
    return yaml.dump(masked(values), Dumper=Dumper, sort_keys=False, allow_unicode=True)


def describe() -> str:
    """Every key with its type, default and meaning: an aligned Markdown table, for --help too."""
    rows = [("key", "type", "default", "meaning")]
    for group, model in schema.groups().items():
        rows += [
            (f"{group}.{name}", *_described(info)) for name, info in model.model_fields.items()
        ]
        if schema.is_open(group):
            rows.append((f"{group}.*", "any", "vLLM's", _one_line(model.__doc__)))
    return _table(rows)


def _values(group: Any) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, Path) else v for name, v in group}


def _described(info: FieldInfo) -> tuple[str, str, str]:
    default = info.default
    shown = {None: "none", True: "true", False: "false", (): "[]", "": "''"}.get(default, default)
    words = schema.type_name(info.annotation)
    return re.sub(r"\ban? ", "", words), str(shown), info.description or ""


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [_row(row, widths) for row in rows]
    rule = "|".join("-" * (width + 2) for width in [*widths, 8])
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]]) + "\n"


def _row(row: tuple[str, str, str, str], widths: list[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
    return "| " + " | ".join([*cells, row[3]]) + " |"
