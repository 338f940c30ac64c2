"""Request fields that are refused although vllm would ignore them.

A field that a client relies on and the engine does not know must not be dropped in silence.
`docs/openai-fields.md` lists every documented field; a test walks that list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.engine.protocol import Operation
from app.errors import InvalidValue


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
_NOT_STORED = "this server does not store responses"

REFUSED: Mapping[Operation, tuple[Refusal, ...]] = {
    Operation.COMPLETIONS: _GUIDED,
    Operation.CHAT: (
        *_GUIDED,
        *_NO_AUDIO,
        *_OLD_FUNCTIONS,
        Refusal("web_search_options", _given, "the server has no web search"),
    ),
    Operation.RESPONSES: (
        Refusal("background", _truthy, _NOT_STORED),
        Refusal("previous_response_id", _given, _NOT_STORED),
        Refusal("conversation", _given, _NOT_STORED),
        Refusal("prompt", _given, "the server has no stored prompts"),
    ),
}


def refuse(operation: Operation, data: Mapping[str, Any]) -> None:
    """Check a decoded body for fields that must not be ignored.

    Raises:
        InvalidValue: it has one; the message names it.

    """
    for refusal in REFUSED.get(operation, ()):
        if refusal.applies(data.get(refusal.field)):
            raise InvalidValue(f"{refusal.field}: {refusal.reason}", refusal.field)
    if operation is Operation.COMPLETIONS:
        _check_best_of(data)


def _check_best_of(data: Mapping[str, Any]) -> None:
    """`best_of` is not implemented by the engine; equal to n it asks for nothing."""
    best_of = data.get("best_of")
    if best_of is not None and best_of != (data.get("n") or 1):
        raise InvalidValue("best_of: only a value equal to n is supported", "best_of")
