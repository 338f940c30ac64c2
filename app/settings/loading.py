"""Read every source, let the stronger one win, and say what is wrong in one line."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.settings import schema
from app.settings.errors import SettingsError, unknown_key
from app.settings.groups import OUR_ERRORS
from app.settings.model import Settings, origin_of
from app.settings.secrets import masked
from app.settings.sources import Entry, from_argv, from_environ, from_file

_MAX_SHOWN_CHARS: Final = 60
_BOUND_ERRORS: Final = frozenset(
    ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number")
)
_EMPTY_ERRORS: Final = frozenset(("string_too_short", "too_short"))
_TELLING_ERRORS: Final = OUR_ERRORS | _BOUND_ERRORS | _EMPTY_ERRORS


def load(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The effective settings: command line, then environment, then `--config` file, then defaults.

    `argv` has no program name and no sub-command. A value replaces the weaker one as a whole; only
    a deeper key (`--engine.hf_overrides.x 1`) changes a part of it. Raises SettingsError.
    """
    environ = os.environ if environ is None else environ  # noqa: TID251 - the one place
    refuse_environment(environ)
    config, from_line = from_argv(argv)
    values, origins = merge([*_from_config(config), *from_environ(environ), *from_line])
    try:
        return Settings.build(values, origins)
    except ValidationError as error:
        # Not chained: pydantic's own message shows the values.
        raise explain(error.errors(include_url=False), origins) from None


def refuse_environment(environ: Mapping[str, str]) -> None:
    """Raises SettingsError for variables of other programs that this service cannot live with."""
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        # prometheus-client looks for the name only: an empty value counts.
        if name in environ:
            raise SettingsError(
                f"{name} must not be set: it labels gauges by process and exports dead ones",
                origin=f"environment variable {name}",
            )
    if environ.get("VLLM_WORKER_MULTIPROC_METHOD", "").lower() == "fork":
        raise SettingsError(
            "VLLM_WORKER_MULTIPROC_METHOD must not be fork: a forked engine process would hold "
            "the listening socket; leave it out or set it to spawn",
            origin="environment variable VLLM_WORKER_MULTIPROC_METHOD",
        )


def merge(entries: Iterable[Entry]) -> tuple[dict[str, Any], dict[str, str]]:
    """Nested values and the origin of each dotted key; later entries win. Raises SettingsError."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for entry in entries:
        key = ".".join(entry.path)
        if not schema.exists(entry.path):
            raise unknown_key(key, entry.origin, schema.keys())
        node = values
        for part in entry.path[:-1]:
            child = node.get(part)
            node[part] = dict(child) if isinstance(child, dict) else {}
            node = node[part]
        node[entry.path[-1]] = entry.value
        origins[key] = entry.origin
    return values, origins


def explain(errors: Sequence[ErrorDetails], origins: Mapping[str, str]) -> SettingsError:
    """One line for the first key that pydantic complains about."""
    # A union complains once for each member; that a value is out of bounds says more than that
    # it is not of another type.
    same_key = [error for error in errors if _keys(error) == _keys(errors[0])]
    error = next((error for error in same_key if error["type"] in _TELLING_ERRORS), errors[0])
    keys = _keys(error)
    # Of several keys that do not fit together, the one that somebody has set.
    key = next((name for name in keys if name in origins), keys[0])
    return SettingsError(f"{key} {_reason(error, key)}", origin=origin_of(key, origins))


def _from_config(config: Path | None) -> Iterable[Entry]:
    return () if config is None else from_file(config)


def _keys(error: ErrorDetails) -> tuple[str, ...]:
    context = error.get("ctx", {})
    if "keys" in context:
        return tuple(context["keys"])
    # Below the key come names of pydantic's own, such as the members of a union.
    return (".".join([*map(str, error["loc"][:2]), *filter(None, [context.get("key")])]),)


def _reason(error: ErrorDetails, key: str) -> str:
    if error["type"] in OUR_ERRORS:
        return error["msg"]
    if error["type"] in _EMPTY_ERRORS:
        return "must not be empty"
    info = schema.keys().get(key)
    if error["type"] in _BOUND_ERRORS:
        message = error["msg"].replace("Input should be", "must be")
    elif info is not None:
        message = f"must be {schema.type_name(info.annotation)}"
    else:
        message = error["msg"]
    return f"{message}, not {_shown(error['input'], key)}"


def _shown(value: Any, key: str) -> str:
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(masked(value, key.rpartition(".")[2]))
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
