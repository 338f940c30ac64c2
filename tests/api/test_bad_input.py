"""Bad values of fields on every route, streamed and not: 400, and which field it was."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.rig.bodies import (
    ABSENT,
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    GENERATIVE,
    MESSAGES,
    RESPONSES,
    ROUTES,
    TOKENIZE,
    USER,
    body,
    error_of,
)
from tests.rig.service import Service

HUGE = 10**30
VOCABULARY = 2000
"""More than the tiny model's."""
BOTH = (COMPLETIONS, CHAT)
OPENAI = (*BOTH, RESPONSES)
ANTHROPIC = (MESSAGES, COUNT_TOKENS)
SAME = "the field's own name"

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TOOL = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "nope"}}
NAMED = {"type": "function", "name": "tell", "parameters": {"type": "object"}}
CLAUDES = {"name": "tell", "input_schema": {"type": "object"}}


@dataclass(frozen=True)
class Case:
    """One bad request and the `param` of its error."""

    path: str
    fields: dict[str, Any]
    param: str | None

    def __str__(self) -> str:
        return f"{self.path} {self.fields}"[:90]


def bad(
    paths: str | Sequence[str],
    field: str,
    *values: object,
    param: str | None = SAME,
    **more: object,
) -> Iterator[Case]:
    """Each value for the field, with more fields, on each route."""
    for path in [paths] if isinstance(paths, str) else paths:
        for value in values:
            yield Case(path, {field: value, **more}, field if param == SAME else param)


def message(content: object, role: object = "user") -> list[Any]:
    return [{"role": role, "content": content}]


def schema(value: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}


SAMPLING = [
    *bad(BOTH, "n", 0, -1, 16_385, HUGE, 1.5, "x", [], {}),
    *bad(GENERATIVE, "temperature", -0.1, 2.1, -HUGE, "hot", [], {}),
    *bad(GENERATIVE, "top_p", 0, -1, 1.1, "x", []),
    *bad(GENERATIVE, "top_k", -2, -HUGE, 1.5, "x"),
    *bad(GENERATIVE, "top_k", HUGE, temperature=1, param=None),
    *bad(OPENAI, "min_p", -0.1, 1.1, "x"),
    *bad(OPENAI, "presence_penalty", -2.1, 2.1, "x"),
    *bad(OPENAI, "frequency_penalty", -2.1, 2.1, "x"),
    *bad(OPENAI, "repetition_penalty", 0, -1, "x"),
    *bad(OPENAI, "seed", 2**63, -HUGE, 0.5, "x", []),
    *bad(OPENAI, "priority", 0.5, "x", 2**63, []),
    *bad(BOTH, "length_penalty", 1e308, -1e308, 41, "x", use_beam_search=True),
    *bad(BOTH, "use_beam_search", 5, "x"),
    *bad(BOTH, "n", 0, -1, HUGE, use_beam_search=True),
    *bad(GENERATIVE, "stream", "x", 5, [], {}),
]
LENGTH = [
    *bad(BOTH, "max_tokens", -1, 0, -HUGE, 0.5, "x", [], {}),
    *bad(CHAT, "max_completion_tokens", -1, 0, "x"),
    *bad(RESPONSES, "max_output_tokens", -1, 0, "x"),
    *bad(MESSAGES, "max_tokens", -1, 0, "x", ABSENT),
    *bad(BOTH, "min_tokens", -1, 3, HUGE, "x"),
    *bad(BOTH, "truncate_prompt_tokens", -2, 2**63, "x"),
]
PROBABILITIES = [
    *bad(COMPLETIONS, "logprobs", 100, -1, -2, HUGE, 1.5, "x", []),
    *bad(CHAT, "logprobs", 5, "x", []),
    *bad(CHAT, "top_logprobs", 100, -1, param="logprobs", logprobs=True),
    *bad(CHAT, "top_logprobs", -5, "x", logprobs=True),
    *bad(CHAT, "top_logprobs", 5),
    *bad(BOTH, "prompt_logprobs", 100, -3, "x", stream=False),
    *bad(BOTH, "prompt_logprobs", 1, stream=True),
    *bad(BOTH, "logprob_token_ids", [1]),
    *bad(COMPLETIONS, "logprob_token_ids", [VOCABULARY], [-1], [HUGE], logprobs=1),
]
TOKENS = [
    *bad(OPENAI, "logit_bias", {str(VOCABULARY): 1}, {"-1": 1}, {"a": 1}, {str(HUGE): 1}, [], "x"),
    *(Case(path, {"logit_bias": {"5": "x"}}, "logit_bias.5") for path in OPENAI),
    *bad(BOTH, "allowed_token_ids", [], [VOCABULARY], [-1], "x"),
    *bad(BOTH, "stop_token_ids", [VOCABULARY], [-1], [HUGE], "x"),
    *bad(BOTH, "stop_token_ids", ["x"], [0.5], param="stop_token_ids.0"),
    *bad(BOTH, "stop", ""),
    *bad(OPENAI, "stop", [""], ["a", ""], ["a"] * 5, ["a"] * 1000, 5, {}),
    *bad(OPENAI, "stop", [5], param="stop.0"),
    *bad(MESSAGES, "stop_sequences", ["a"] * 5, "a", 5),
    *bad(MESSAGES, "stop_sequences", [""], param="stop"),
    *bad(BOTH, "bad_words", [""], "x", 5),
    *bad(BOTH, "bad_words", [5], param="bad_words.0"),
]
PROMPTS = [
    *bad(COMPLETIONS, "prompt", ABSENT, None, "", 5, {}),
    *bad(COMPLETIONS, "prompt", [], [""], [[]], ["a", ""], [[5], []], param=None),
    *bad(COMPLETIONS, "prompt", [VOCABULARY], [[5], [VOCABULARY]], [HUGE], param=None),
    *bad(COMPLETIONS, "prompt", [-1], [0.5], [{}], [None], param="prompt.0"),
    *bad(COMPLETIONS, "prompt", ["a", 5], [[5], 5], param="prompt.0"),
    *bad(COMPLETIONS, "prompt", [5, "a"], [5, [5]], param="prompt.1"),
    *bad(COMPLETIONS, "prompt", [[5, -1]], [[5, "a"]], param="prompt.0.1"),
    *bad(COMPLETIONS, "prompt", ["a"] * 1025),
    *bad(COMPLETIONS, "prompt_embeds", "AAAA", ["AAAA"], "!"),
    *bad(COMPLETIONS, "prompt_embeds", "AAAA", prompt=ABSENT),
    *bad(COMPLETIONS, "suffix", "x", 5),
    *bad(COMPLETIONS, "echo", "x", 5),
    *bad(COMPLETIONS, "user", 5),
    *bad(TOKENIZE, "prompt", ABSENT, None, 5, ["a"], [5]),
    *bad(DETOKENIZE, "tokens", ABSENT, None, "x", 5, [VOCABULARY], [2**32]),
    *bad(DETOKENIZE, "tokens", [-1], [HUGE], ["x"], [0.5], [[5]], param="tokens.0"),
]
CHATS = [
    *bad((CHAT, *ANTHROPIC), "messages", ABSENT, None, 5, "x", {}),
    *bad((CHAT, *ANTHROPIC), "messages", [], param=None),
    *bad((CHAT, *ANTHROPIC), "messages", [5], ["x"], [[]], param="messages.0"),
    *bad((CHAT, *ANTHROPIC), "messages", [{"content": "x"}], param="messages.0.role"),
    *bad((CHAT, *ANTHROPIC), "messages", message("x", role=5), param="messages.0.role"),
    *bad(ANTHROPIC, "messages", message("x", role="nope"), param="messages.0.role"),
    *bad((CHAT, *ANTHROPIC), "messages", message(None), message(5), param="messages.0.content"),
    *bad(CHAT, "messages", message([5]), message(["x"]), param=None),
    *bad(CHAT, "messages", message([IMAGE]), param=None),
    *bad(ANTHROPIC, "messages", message([5]), param="messages.0.content.0"),
    *bad(ANTHROPIC, "messages", message([{"type": "nope"}]), param="messages.0.content.0.type"),
    *bad(ANTHROPIC, "system", 5, {}),
    *bad(ANTHROPIC, "model", ABSENT, 5, ""),
    *bad(TOKENIZE, "messages", [], prompt=ABSENT, param=None),
    *bad(CHAT, "chat_template", "x", "{{", param=None),
    *bad((CHAT, *ANTHROPIC), "chat_template_kwargs", 5, "x"),
    *bad((CHAT, *ANTHROPIC), "chat_template_kwargs", {"messages": 5}, {"tools": 5}, param=None),
    *bad(CHAT, "continue_final_message", True, add_generation_prompt=True, param=None),
]
RESPONSE_INPUT = [
    *bad(RESPONSES, "input", ABSENT, None, 5),
    *bad(RESPONSES, "input", [], param=None),
    *bad(RESPONSES, "input", [5], param="input.0"),
    *bad(RESPONSES, "input", [{"role": "nope", "content": "x"}], param="input.0.type"),
    *bad(RESPONSES, "input", [{"type": "function_call", "name": "x"}], param="input.0.arguments"),
    *bad(RESPONSES, "input", [{"type": "item_reference", "id": "x"}]),
    *bad(RESPONSES, "previous_response_id", "resp_1", "", 5),
    *bad(RESPONSES, "background", True, "x"),
    *bad(RESPONSES, "include", ["nope"], param="include.0"),
    *bad(RESPONSES, "metadata", {"a": 5}, param="metadata.a"),
    *bad(RESPONSES, "truncation", "nope", 5),
    *bad(
        RESPONSES, "top_logprobs", 100, param="logprobs", include=["message.output_text.logprobs"]
    ),
]
TOOLS = [
    *bad(CHAT, "tools", [], 5, {}),
    *bad(CHAT, "tools", [5], param="tools.0"),
    *bad(CHAT, "tools", [{}], [{"type": "function"}], param="tools.0.function"),
    *bad(CHAT, "tools", [TOOL | {"type": "nope"}], param="tools.0.type"),
    *bad(CHAT, "tools", [5], tool_choice=CALL, param="tools.0"),
    *bad(CHAT, "tool_choice", "auto", "required", CALL),
    *bad(CHAT, "tool_choice", "nope", 5, CALL, tools=[TOOL]),
    *bad(CHAT, "tool_choice", {}, tools=[TOOL], param="tool_choice.function"),
    *bad(RESPONSES, "tools", 5, {}),
    *bad(RESPONSES, "tools", [5], param="tools.0"),
    *bad(RESPONSES, "tools", [{"type": "web_search"}], [{"type": "nope"}], param="tools.0.type"),
    *bad(RESPONSES, "tool_choice", "required", "nope", {"type": "function", "name": "nope"}),
    *bad(RESPONSES, "tool_choice", {"type": "function", "name": "nope"}, tools=[NAMED]),
    *bad(ANTHROPIC, "tools", 5, {}),
    *bad(ANTHROPIC, "tools", [{"name": "x"}], param="tools.0.input_schema"),
    *bad(ANTHROPIC, "tool_choice", "nope", {"type": "tool"}),
    *bad(ANTHROPIC, "tool_choice", {"type": "tool", "name": "nope"}, tools=[CLAUDES], param=None),
]
GRAMMARS = [
    *bad(BOTH, "response_format", "json", 5, []),
    *bad(BOTH, "response_format", {"type": "nope"}, param="response_format.type"),
    *bad(BOTH, "response_format", {"type": "json_schema"}, {"type": "structural_tag"}),
    *bad(BOTH, "response_format", schema({"type": "nope"}), schema({"$ref": "#/x"}), param=None),
    *bad(BOTH, "response_format", schema({"type": "string", "pattern": "(["}), param=None),
    *bad(BOTH, "structured_outputs", "x", 5, []),
    *bad(BOTH, "structured_outputs", {}, {"regex": "(["}, {"regex": "(" * 5000}, param=None),
    *bad(BOTH, "structured_outputs", {"grammar": "nope"}, {"json": "{"}, param=None),
    *bad(BOTH, "structured_outputs", {"json": {"type": "nope"}}, {"choice": []}, param=None),
    *bad(BOTH, "structured_outputs", {"choice": [5]}, param="structured_outputs.choice.0"),
    *bad(BOTH, "structured_outputs", {"structural_tag": "x"}, {"structural_tag": "{}"}),
    *bad(RESPONSES, "text", 5),
    *bad(RESPONSES, "text", {"format": {"type": "nope"}}, param="text.format.type"),
]
OTHERS = [
    *bad(BOTH, "stream_options", {"include_usage": True}, stream=False),
    *bad(BOTH, "stream_options", 5, "x", stream=True),
    *bad(BOTH, "best_of", 2, 0, "x"),
    *bad(BOTH, "best_of", 1, n=2),
    *bad(BOTH, "guided_json", {}, {"type": "object"}, "x"),
    *bad(BOTH, "guided_regex", "a"),
    *bad(BOTH, "guided_choice", ["a"]),
    *bad(BOTH, "guided_grammar", "x"),
    *bad(BOTH, "cache_salt", "", "a/b", "x" * 200, 5),
    *bad(BOTH, "mm_processor_kwargs", {"a": 1}),
    *bad(BOTH, "thinking_token_budget", -5),
    *bad(BOTH, "stream_interval", 0, -1, "x"),
    *bad(BOTH, "repetition_detection", 5, "x"),
    *bad(BOTH, "vllm_xargs", 5, "x"),
    *bad(ANTHROPIC, "thinking", {"type": "nope"}, "x"),
]
TABLE = [
    *(SAMPLING + LENGTH + PROBABILITIES + TOKENS + PROMPTS),
    *(CHATS + RESPONSE_INPUT + TOOLS + GRAMMARS + OTHERS),
]


@pytest.fixture(scope="module")
def client(service: Service) -> httpx.Client:
    return service.client()


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_a_bad_value(client: httpx.Client, case: Case) -> None:
    streamed = case.path in GENERATIVE and "stream" not in case.fields
    for stream in (False, True) if streamed else (case.fields.get("stream", ABSENT),):
        fields = {"stream": stream} | case.fields
        response = client.post(case.path, json=body(case.path, **fields))
        assert error_of(response, 400, "invalid_value")["param"] == case.param, response.text


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/v1/embeddings"])
@pytest.mark.parametrize("name", ["nope", "Tiny", "tiny ", "\x00", "../tiny"])
def test_an_unknown_model(client: httpx.Client, path: str, name: str) -> None:
    for stream in (False, True):
        response = client.post(path, json=body(path, model=name, stream=stream))
        assert error_of(response, 404, "model_not_found")["param"] == "model"


def test_null_is_as_absent(client: httpx.Client) -> None:
    for path in ROUTES:
        nulls = dict.fromkeys(("n", "tools", "stream", "user", "stop", "truncation", "nope"))
        bare = client.post(path, json=body(path))
        assert client.post(path, json=body(path, **nulls)).status_code == bare.status_code


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": schema({"$ref": "#"})},
        {"response_format": schema({"type": "array", "minItems": 10**7})},
        {"structured_outputs": {"grammar": "root ::= root"}},
        {"structured_outputs": {"regex": r"[^\s\S]"}},
    ],
)
@pytest.mark.parametrize("path", BOTH)
def test_a_grammar_that_only_the_engine_finds_bad(
    client: httpx.Client, path: str, fields: dict[str, Any], stream: bool
) -> None:
    response = client.post(path, json=body(path, stream=stream, **fields))
    error_of(response, 400, "invalid_value")


# -- the context

LIMIT = 1024
WORDS = "word " * 3000


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": WORDS}),
        (COMPLETIONS, {"prompt": ["Hello", WORDS]}),
        (COMPLETIONS, {"prompt": [300] * (LIMIT + 1)}),
        (COMPLETIONS, {"prompt": [[300], [300] * (LIMIT + 1)]}),
        (COMPLETIONS, {"prompt": "a" * 1_000_000}),
        (CHAT, {"messages": message(WORDS)}),
        (CHAT, {"messages": [USER] * 2000}),
        (RESPONSES, {"input": WORDS}),
        (RESPONSES, {"instructions": WORDS}),
        (MESSAGES, {"messages": message(WORDS)}),
        (MESSAGES, {"system": WORDS}),
        (COUNT_TOKENS, {"messages": message(WORDS)}),
    ],
)
def test_a_prompt_over_the_context(
    client: httpx.Client, path: str, fields: dict[str, Any], stream: bool
) -> None:
    response = client.post(path, json=body(path, stream=stream, **fields))
    text = error_of(response, 400, "context_length_exceeded")["message"]
    numbers = [int(word) for word in text.replace(",", " ").split() if word.isdigit()]
    assert LIMIT in numbers
    assert max(numbers) > LIMIT


@pytest.mark.parametrize("tokens", [1, ABSENT])
def test_a_prompt_that_fills_the_context(client: httpx.Client, tokens: object) -> None:
    fields = {"prompt": [300] * LIMIT, "max_tokens": tokens}
    response = client.post(COMPLETIONS, json=body(COMPLETIONS, **fields))
    text = error_of(response, 400, "context_length_exceeded")["message"]
    assert "1024" in text
    assert "1025" in text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prompt", [[300] * 1000, [[300], [300] * 1000]], ids=["one", "two"])
def test_a_prompt_exactly_at_the_context(
    client: httpx.Client, prompt: list[object], stream: bool
) -> None:
    def ask(tokens: int) -> Any:
        fields = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        return client.post(COMPLETIONS, json=body(COMPLETIONS, **fields))

    assert ask(LIMIT - 1000).status_code == 200
    text = error_of(ask(LIMIT - 999), 400, "context_length_exceeded")["message"]
    assert "1024" in text
    assert "1025" in text
    assert "1000 in the prompt" in text


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_messages_exactly_at_the_context(client: httpx.Client, path: str) -> None:
    messages = message("Hello " * 240)
    counting = body(COUNT_TOKENS, messages=messages)
    count = client.post(COUNT_TOKENS, json=counting).json()["input_tokens"]
    for tokens, status in ((LIMIT - count, 200), (LIMIT - count + 1, 400)):
        fields = {"messages": messages, "max_tokens": tokens}
        response = client.post(path, json=body(path, **fields))
        assert response.status_code == status, response.text


def test_text_exactly_at_the_context(client: httpx.Client) -> None:
    text = "Hello " * 240
    count = client.post(TOKENIZE, json=body(TOKENIZE, prompt=text)).json()["count"]
    for tokens, status in ((LIMIT - count, 200), (LIMIT - count + 1, 400)):
        fields = {"prompt": text, "max_tokens": tokens}
        response = client.post(COMPLETIONS, json=body(COMPLETIONS, **fields))
        assert response.status_code == status, response.text


# -- afterwards


def test_nothing_of_it_stays_counted(service: Service, client: httpx.Client) -> None:
    for fields in ({"n": -1}, {"n": HUGE}, {"max_tokens": -1}, {"temperature": -1}):
        client.post(COMPLETIONS, json=body(COMPLETIONS, **fields))
    for name in ("vllm_pending_requests", "vllm_running_requests", "tidegate_demand_sequences"):
        assert service.metric(name) == 0
    assert client.post(COMPLETIONS, json=body(COMPLETIONS)).status_code == 200
