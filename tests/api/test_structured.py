"""Structured outputs and tool calls: the text keeps to its grammar, streamed or not."""

import json
import re
from typing import Any

import pytest

from loadtest.tiny_model import train_tokenizer
from tests.rig.answers import ask, ask_streamed, data_of, texts
from tests.rig.routes import CHAT, COMPLETIONS, Json, Route
from tests.rig.service import Service

streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

AGE = {
    "type": "object",
    "properties": {"age": {"enum": [7, 42]}, "name": {"enum": ["Ada", "Bob"]}},
    "required": ["age", "name"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE, "strict": True}}
TOOL = {"type": "function", "function": {"name": "tell", "parameters": AGE, "strict": True}}
NAMED = {"type": "function", "function": {"name": "tell"}}
BLANK = [token for text, token in train_tokenizer().get_vocab().items() if not text.strip("ĠĊĉč")]
BRIEF: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": 200,
    "ignore_eos": False,
    "logit_bias": dict.fromkeys(map(str, BLANK), -100),
}
"""A grammar for JSON allows blanks everywhere, and the model would write little else."""


def assert_age(text: str) -> None:
    value = json.loads(text)
    assert value.keys() == {"age", "name"}
    assert value["age"] in (7, 42)
    assert value["name"] in ("Ada", "Bob")


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
@streamed_or_not
def test_a_json_schema_is_kept(service: Service, route: Route, stream: bool) -> None:
    (text,) = texts(service, route, stream=stream, response_format=SCHEMA, **BRIEF).values()
    assert_age(text)


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
@streamed_or_not
@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
        ({"choice": ["red", "green"]}, "red|green"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
    ],
    ids=["regex", "choice", "grammar"],
)
def test_structured_outputs_are_kept(
    service: Service, route: Route, stream: bool, outputs: Json, pattern: str
) -> None:
    more: dict[str, Any] = {"structured_outputs": outputs, "ignore_eos": False, "temperature": 1}
    (text,) = texts(service, route, stream=stream, **more).values()
    assert re.fullmatch(pattern, text)


def test_a_tool_call_has_valid_arguments(service: Service) -> None:
    more = {"tools": [TOOL], "tool_choice": NAMED}
    (answer,) = ask(service, CHAT, **more, **BRIEF)["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "tell")
    assert call["id"]
    assert_age(call["function"]["arguments"])


def test_a_tool_call_is_streamed(service: Service) -> None:
    more = {"tools": [TOOL], "tool_choice": NAMED}
    chunks = data_of(ask_streamed(service, CHAT, **more, **BRIEF))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
    assert {call["index"] for call in calls} == {0}
    names = [call["function"].get("name") for call in calls]
    assert [name for name in names if name] == ["tell"]
    assert_age("".join(call["function"].get("arguments") or "" for call in calls))
