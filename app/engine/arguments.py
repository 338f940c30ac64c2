"""Settings to vllm's own arguments, checked by vllm's own parser.

The parser of `vllm serve` is the one place that knows every argument of the installed version,
with its type. The settings are written out as a command line for it.
"""

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import (
    BaseFrontendArgs,
    make_arg_parser,
    validate_parsed_serve_args,
)
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from app.settings import Settings, SettingsError

# In vllm an empty list of media domains allows every domain; no host has this name (RFC 6761).
NO_DOMAIN = "media-domains-are-off.invalid"

_LOGGING_IS_OURS = "logging is set by logging.log_content"
_NOT_OFFERED = "it belongs to a route that is not offered"
_REFUSED: Mapping[str, str] = {
    "engine.enable_log_requests": _LOGGING_IS_OURS,
    "engine.disable_log_stats": "the gauges need the engine's statistics",
    "engine.max_num_queued_reqs": "admission is ours: set admission.max_pending",
    "engine.max_num_queued_tokens": "admission is ours: set admission.max_pending",
    "frontend.enable_log_outputs": _LOGGING_IS_OURS,
    "frontend.enable_log_deltas": _LOGGING_IS_OURS,
    "frontend.max_log_len": _LOGGING_IS_OURS,
    "frontend.log_error_stack": "logging is set by logging.level",
    "frontend.enable_server_load_tracking": "the load is in vllm_pending_requests",
    "frontend.tokens_only": _NOT_OFFERED,
    "frontend.enable_scale_out": _NOT_OFFERED,
    "frontend.enable_tokenizer_info_endpoint": _NOT_OFFERED,
    "frontend.cohere_is_reasoning_model": _NOT_OFFERED,
    "frontend.cohere_format": _NOT_OFFERED,
}


class _Parser(FlexibleArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(_one_line(message))


def parse_arguments(settings: Settings, model: str, served_name: str | None) -> argparse.Namespace:
    """The namespace that `vllm serve` would have for these settings.

    Args:
        settings: the service's settings.
        model: the model's path or name.
        served_name: the name to serve it by when the settings have none.

    Raises:
        SettingsError: a key or value is not one of the installed vllm's; one line.

    """
    engine, frontend = settings.engine.arguments(), settings.frontend.arguments()
    _check_names("engine", engine, [field.name for field in fields(AsyncEngineArgs)])
    _check_names("frontend", frontend, [field.name for field in fields(BaseFrontendArgs)])
    engine = {**_defaults(settings, served_name), **engine, "model": model}
    if not engine.get("allowed_media_domains"):
        engine["allowed_media_domains"] = [NO_DOMAIN]
    args = _parse(_Parser(), engine, frontend)
    _check_combinations(args)
    return args


def _defaults(settings: Settings, served_name: str | None) -> dict[str, Any]:
    content = settings.logging.log_content
    defaults: dict[str, Any] = {"enable_log_requests": content}
    if served_name is not None:
        defaults["served_model_name"] = served_name
    return defaults


def _check_names(group: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    public = [name for name in known if not name.startswith("_")]
    for name in values:
        key = f"{group}.{name}"
        if key in _REFUSED:
            raise SettingsError(f"{key}: cannot be set: {_REFUSED[key]}")
        if name not in public:
            near = difflib.get_close_matches(name, public, n=1)
            hint = f"; did you mean {group}.{near[0]}?" if near else ""
            raise SettingsError(f"{key}: unknown to the installed vllm{hint}")


def _parse(
    parser: _Parser, engine: Mapping[str, Any], frontend: Mapping[str, Any]
) -> argparse.Namespace:
    make_arg_parser(parser)
    actions = {action.dest: action for action in parser._actions}
    argv: list[str] = []
    for group, values in (("engine", engine), ("frontend", frontend)):
        for name, value in values.items():
            words = _words(actions[name], value)
            _try_alone(parser, f"{group}.{name}", words)
            argv += words
    args: argparse.Namespace = parser.parse_args(argv)
    return args


def _try_alone(parser: _Parser, key: str, words: list[str]) -> None:
    """Parse one argument by itself, so that its error can name the setting."""
    try:
        parser.parse_args(list(words))
    except (SettingsError, argparse.ArgumentError, ValueError, TypeError) as error:
        reason = str(error).partition(": ")[2] or str(error)
        raise SettingsError(f"{key}: {_one_line(reason)}") from error


def _words(action: argparse.Action, value: Any) -> list[str]:
    option = max(action.option_strings, key=len)
    if isinstance(action, argparse.BooleanOptionalAction):
        return [_switch(action, value)]
    if action.nargs in ("+", "*") or isinstance(action.nargs, int):
        items = value if isinstance(value, list | tuple) else [value]
        return [option, *map(_word, items)]
    if value is True and action.const is True:
        return [option]
    return [f"{option}={_word(value)}"]


def _switch(action: argparse.Action, value: Any) -> str:
    if not isinstance(value, bool):
        raise SettingsError(f"{action.dest}: {value!r} is not true or false")
    names = [name for name in action.option_strings if name.startswith("--")]
    wanted = [name for name in names if name.startswith("--no-") is not value]
    return wanted[0]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _check_combinations(args: argparse.Namespace) -> None:
    try:
        for plugin, load in (
            (args.tool_parser_plugin, ToolParserManager.import_tool_parser),
            (args.reasoning_parser_plugin, ReasoningParserManager.import_reasoning_parser),
        ):
            if plugin:
                load(plugin)
        validate_parsed_serve_args(args)
        validate_api_server_args(args)
    except (KeyError, TypeError, ValueError) as error:
        text = str(error.args[0]) if error.args else str(error)
        raise SettingsError(_one_line(text.removeprefix("Error: "))) from error


def _one_line(text: str) -> str:
    return " ".join(text.split())
