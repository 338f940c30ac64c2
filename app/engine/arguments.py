"""Settings to vllm's own arguments, checked by vllm's own parser.

The parser of `vllm serve` is the one place that knows every argument of the installed version,
with its type. The settings are written out as a command line for it.
"""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NoReturn

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import (
    BaseFrontendArgs,
    make_arg_parser,
    validate_parsed_serve_args,
)
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.exceptions import VLLMError
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from app.settings import Settings, SettingsError, schema, unknown_key

# In vllm an empty list of media domains allows every domain; no host has this name (RFC 6761).
NO_DOMAIN = "media-domains-are-off.invalid"
TOKENISER_THREADS = 4

_LOGGING_IS_OURS = "logging is set by logging.log_content"
_NOT_OFFERED = "it belongs to a route that is not offered"
_REFUSED: Mapping[str, str] = {
    "engine.enable_log_requests": _LOGGING_IS_OURS,
    "engine.disable_log_stats": "the gauges need the engine's statistics",
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

_NAMES: Mapping[str, frozenset[str]] = {
    group: frozenset(field.name for field in fields(arguments) if field.name[0] != "_")
    for group, arguments in (("engine", AsyncEngineArgs), ("frontend", BaseFrontendArgs))
}


class _Parser(FlexibleArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


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
    _check_names(settings, {"engine": engine, "frontend": frontend})
    engine = {**_defaults(settings, served_name), **engine, "model": model}
    if not engine.get("allowed_media_domains"):
        engine["allowed_media_domains"] = [NO_DOMAIN]
    args = _parse(settings, {"engine": engine, "frontend": frontend})
    args.enable_log_outputs = settings.logging.log_content
    _check_combinations(args)
    return args


def _defaults(settings: Settings, served_name: str | None) -> dict[str, Any]:
    content = settings.logging.log_content
    defaults: dict[str, Any] = {"enable_log_requests": content}
    if settings.engine.arguments().get("runner") != "pooling":
        # A long prompt that is being tokenised must not hold the short ones up. (vllm refuses more
        # than one for multimodal pooling models.)
        defaults["renderer_num_workers"] = TOKENISER_THREADS
    if served_name is not None:
        defaults["served_model_name"] = served_name
    return defaults


def _check_names(settings: Settings, groups: Mapping[str, Mapping[str, Any]]) -> None:
    known = [f"{group}.{name}" for group, names in _NAMES.items() for name in names]
    offered = [*schema.keys(), *(key for key in known if key not in _REFUSED)]
    for key in (f"{group}.{name}" for group, values in groups.items() for name in values):
        origin = settings.origin(key)
        if key in _REFUSED:
            raise SettingsError(f"{key} cannot be set: {_REFUSED[key]}", origin=origin)
        if key not in known:
            raise unknown_key(key, origin, offered)


def _parse(settings: Settings, groups: Mapping[str, Mapping[str, Any]]) -> argparse.Namespace:
    parser = _Parser()
    make_arg_parser(parser)
    actions = {action.dest: action for action in parser._actions}
    argv: list[str] = []
    for group, values in groups.items():
        for name, value in values.items():
            key = f"{group}.{name}"
            try:
                words = _words(actions[name], value)
                parser.parse_args(list(words))  # alone, so that its error can name the setting
            except (SettingsError, argparse.ArgumentError, ValueError, TypeError) as error:
                reason = str(error).partition(": ")[2] or str(error)
                raise SettingsError(f"{key}: {reason}", origin=settings.origin(key)) from None
            argv += words
    args: argparse.Namespace = parser.parse_args(argv)
    return args


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
        raise SettingsError(f"{action.dest}: neither true nor false")
    names = [name for name in action.option_strings if name.startswith("--")]
    wanted = [name for name in names if name.startswith("--no-") is not value]
    return wanted[0]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _check_combinations(args: argparse.Namespace) -> None:
    try:
        if args.tool_parser_plugin:
            ToolParserManager.import_tool_parser(args.tool_parser_plugin)
        if args.reasoning_parser_plugin:
            ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
        _check_reasoning_parser(args.reasoning_parser)
        validate_parsed_serve_args(args)
        validate_api_server_args(args)
    except (KeyError, TypeError, ValueError, VLLMError) as error:
        text = str(error.args[0]) if error.args else str(error)
        raise SettingsError(_in_our_names(text.removeprefix("Error: "))) from None


def _check_reasoning_parser(name: str | None) -> None:
    known = ReasoningParserManager.list_registered()
    if name and name not in known:
        raise ValueError(f"--reasoning-parser must be one of {', '.join(known)}")


def _in_our_names(text: str) -> str:
    """vllm's flags, `--like-this`, as the keys that were set."""

    def key(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return f"{'frontend' if name in _NAMES['frontend'] else 'engine'}.{name}"

    return re.sub(r"--([a-z][a-z-]+)", key, text)
