"""Request fields that are refused although vllm would ignore them.

A field that a client relies on and the engine does not know must not be dropped in silence.
`docs/openai-fields.md` lists every documented field; a test walks that list.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.engine.protocol import Operation
from app.errors import InvalidValue

# A beam's score is divided by its length to this power, which must stay a number for any context.
MAX_LENGTH_PENALTY = 40

# Fields that hold schemas, patterns or grammars; and the upper bound of `{1,500}` in one.
_CONSTRAINTS = ("response_format", "structured_outputs", "tools", "text", "output_config")
_REPETITION = re.compile(r"\{\d{0,9},?(\d{1,9})\}")
MAX_REPETITIONS = 10_000

# Kinds of tools that the client runs itself; the others need a tool server beside the engine.
_CLIENTS_TOOLS = frozenset({"function", "custom", "namespace"})


@dataclass(frozen=True)
class Refusal:
    """A field, the values that are refused, and what to do instead."""

    field: str
    applies: Callable[[Any], bool]
    reason: str


def _given(value: Any) -> bool:
    return value is not None


def _truthy(value: Any) -> bool:
    return bool(value)


_GUIDED = tuple(
    Refusal(name, _given, "was removed; use structured_outputs or response_format")
    for name in (
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
    )
)
_LENGTH_PENALTY = Refusal(
    "length_penalty",
    lambda value: isinstance(value, int | float) and abs(value) > MAX_LENGTH_PENALTY,
    f"must be between -{MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}",
)
_NO_AUDIO = (
    Refusal("audio", _given, "audio output is not supported"),
    Refusal(
        "modalities",
        lambda value: _given(value) and value != ["text"],
        'only ["text"] is supported',
    ),
)
_OLD_FUNCTIONS = (
    Refusal("functions", _given, "is replaced by tools"),
    Refusal("function_call", _given, "is replaced by tool_choice"),
)
_MODERATION = Refusal("moderation", _given, "the server does not moderate")
_NOT_STORED = "this server does not store responses"

REFUSED: Mapping[Operation, tuple[Refusal, ...]] = {
    Operation.COMPLETIONS: (*_GUIDED, _LENGTH_PENALTY),
    Operation.CHAT: (
        *_GUIDED,
        _LENGTH_PENALTY,
        *_NO_AUDIO,
        *_OLD_FUNCTIONS,
        _MODERATION,
        Refusal("web_search_options", _given, "the server has no web search"),
    ),
    Operation.RESPONSES: (
        Refusal("background", _truthy, _NOT_STORED),
        Refusal("previous_response_id", _given, _NOT_STORED),
        Refusal("conversation", _given, _NOT_STORED),
        Refusal("background_options", _given, _NOT_STORED),
        Refusal("context_management", _truthy, "the server does not shorten conversations"),
        Refusal("access_programs", _truthy, "the server has no access programs"),
        Refusal("image", _given, "the server makes no images"),
        _MODERATION,
        Refusal("prompt", _given, "the server has no stored prompts"),
    ),
}


def without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """A decoded body whose fields are all given: in OpenAI's API null says what absence says."""
    return {name: value for name, value in data.items() if value is not None}


def refuse(operation: Operation, data: Mapping[str, Any], *, tool_server: bool = False) -> None:
    """Check a decoded body for fields that must not be ignored.

    Args:
        operation: what is asked for.
        data: the body.
        tool_server: there is one, which runs the tools that are not the client's.

    Raises:
        InvalidValue: it has one; the message names it.

    """
    for refusal in REFUSED.get(operation, ()):
        if refusal.applies(data.get(refusal.field)):
            raise InvalidValue(f"{refusal.field}: {refusal.reason}", refusal.field)
    if operation in (Operation.COMPLETIONS, Operation.CHAT):
        _check_best_of(data)
    _check_repetitions(data)
    if operation is Operation.RESPONSES and not tool_server:
        _check_tools(data.get("tools"))


def _check_repetitions(data: Mapping[str, Any]) -> None:
    """Patterns are compiled on the event loop, some 70 µs for each repetition that they allow."""
    constraints = [data.get(name) for name in _CONSTRAINTS]
    text = str([constraint for constraint in constraints if constraint])
    repetitions = sum(int(number) for number in _REPETITION.findall(text))
    if repetitions > MAX_REPETITIONS:
        raise InvalidValue(
            f"Patterns may repeat their parts {MAX_REPETITIONS} times in all, not {repetitions}."
        )


def _check_best_of(data: Mapping[str, Any]) -> None:
    """`best_of` is not implemented by the engine; equal to n it asks for nothing."""
    best_of = data.get("best_of")
    if best_of is not None and best_of != (data.get("n") or 1):
        raise InvalidValue("best_of: only a value equal to n is supported", "best_of")


def _check_tools(tools: Any) -> None:
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
        if isinstance(kind, str) and kind not in _CLIENTS_TOOLS:
            param = f"tools.{index}.type"
            raise InvalidValue(f"{param}: this server has no tools of its own", param)
