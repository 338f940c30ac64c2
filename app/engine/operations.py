"""How each operation is parsed and costed, and which serving object of vllm answers it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from starlette.datastructures import State
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

from app.engine.protocol import Call, Operation

Handler = Callable[[Any, Any], Awaitable[Any]]

# Characters a token has in English text, for a guess before tokenising
# (https://platform.openai.com/tokenizer: "one token generally corresponds to ~4 characters").
CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Spec:
    """One operation: its request model, its handler in vllm's state, and its costs."""

    schema: TypeAdapter[Any]
    handler: Callable[[State], Handler | None]
    sequences: Callable[[Any], int] = lambda request: 1
    max_tokens: Callable[[Any], int | None] = lambda request: None
    nested: Callable[[Any], bool] = lambda request: False


def _attribute(name: str, method: str) -> Callable[[State], Handler | None]:
    def find(state: State) -> Handler | None:
        return getattr(getattr(state, name, None), method, None)

    return find


def _count(prompt: Any) -> int:
    """How many prompts a prompt or input field holds: a list of numbers is one."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _completion_sequences(request: CompletionRequest) -> int:
    embeds = request.prompt_embeds
    prompts = _count(request.prompt) if request.prompt is not None else 0
    prompts += len(embeds) if isinstance(embeds, list) else int(embeds is not None)
    return max(1, prompts) * (request.n or 1)


def _none(request: Any) -> int:
    """The tokenizer's routes do not need the engine."""
    return 0


def _named_max_tokens(*names: str) -> Callable[[Any], int | None]:
    """The first of the fields that the client set; a default is not a wish."""

    def read(request: Any) -> int | None:
        asked = (getattr(request, name) for name in names if name in request.model_fields_set)
        return next((value for value in asked if value is not None), None)

    return read


SPECS: Mapping[Operation, Spec] = {
    Operation.COMPLETIONS: Spec(
        TypeAdapter(CompletionRequest),
        _attribute("openai_serving_completion", "create_completion"),
        _completion_sequences,
        _named_max_tokens("max_tokens"),
        lambda request: request.use_beam_search,
    ),
    Operation.CHAT: Spec(
        TypeAdapter(ChatCompletionRequest),
        _attribute("openai_serving_chat", "create_chat_completion"),
        lambda request: request.n or 1,
        _named_max_tokens("max_completion_tokens", "max_tokens"),
        lambda request: request.use_beam_search,
    ),
    Operation.RESPONSES: Spec(
        TypeAdapter(ResponsesRequest),
        _attribute("openai_serving_responses", "create_responses"),
        max_tokens=_named_max_tokens("max_output_tokens"),
        nested=lambda request: True,
    ),
    Operation.MESSAGES: Spec(
        TypeAdapter(AnthropicMessagesRequest),
        _attribute("anthropic_serving_messages", "create_messages"),
        max_tokens=_named_max_tokens("max_tokens"),
    ),
    Operation.COUNT_TOKENS: Spec(
        TypeAdapter(AnthropicCountTokensRequest),
        _attribute("anthropic_serving_messages", "count_tokens"),
        _none,
    ),
    Operation.EMBEDDINGS: Spec(
        TypeAdapter(EmbeddingRequest),
        _attribute("serving_embedding", "__call__"),
        lambda request: _count(getattr(request, "input", None)),
    ),
    Operation.TOKENIZE: Spec(
        TypeAdapter(TokenizeRequest), _attribute("serving_tokenization", "create_tokenize"), _none
    ),
    Operation.DETOKENIZE: Spec(
        TypeAdapter(DetokenizeRequest),
        _attribute("serving_tokenization", "create_detokenize"),
        _none,
    ),
}


def describe(operation: Operation, request: Any, body_bytes: int) -> Call:
    """The call that a validated request makes."""
    spec = SPECS[operation]
    options = getattr(request, "stream_options", None)
    return Call(
        operation=operation,
        request=request,
        model=request.model,
        sequences=spec.sequences(request),
        estimate=_estimate(request, body_bytes),
        nested=spec.nested(request),
        max_tokens=spec.max_tokens(request),
        null_usage=bool(options and options.include_usage and not options.continuous_usage_stats),
    )


def _estimate(request: Any, body_bytes: int) -> int:
    """Prompt tokens of a whole request, from its size unless it came tokenised."""
    prompt = getattr(request, "prompt", None)
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return len(prompt)
        if isinstance(prompt[0], list):
            return sum(map(len, prompt))
        return sum(map(len, prompt)) // CHARS_PER_TOKEN
    return (len(prompt) if isinstance(prompt, str) else body_bytes) // CHARS_PER_TOKEN
