"""How each operation is parsed and costed, and which serving object of vllm answers it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError, create_model
from pydantic_core import SchemaValidator
from starlette.datastructures import State
from vllm import envs
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.generate.base.protocol import StreamOptions
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

from app.engine.protocol import Call, Operation
from app.errors import InvalidValue

Handler = Callable[[Any, Any], Awaitable[Any]]

# Characters a token has in English text, for a guess before tokenising
# (https://platform.openai.com/tokenizer: "one token generally corresponds to ~4 characters").
CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Spec:
    """One operation: its request model, its handler in vllm's state, and its costs.

    Attributes:
        request: a pydantic model, or a union of several.
        max_tokens: the fields that bound the output, the one that counts first.

    """

    request: Any
    handler: Callable[[State], Handler | None]
    sequences: Callable[[Any], int] = lambda request: 1
    max_tokens: tuple[str, ...] = ()
    nested: Callable[[Any], bool] = lambda request: False

    @cached_property
    def schema(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.request)

    @cached_property
    def validator(self) -> SchemaValidator:
        """Validates as `schema` does, but stops at the first bad item of a list.

        Pydantic would describe every item, for each member of every union: minutes of the event
        loop for a body of some kilobytes.
        """
        return SchemaValidator(fail_fast(self.schema.core_schema))


def fail_fast(schema: Any) -> Any:
    """A copy of a core schema whose lists, sets and tuples give up at the first bad item."""
    if isinstance(schema, list | tuple):
        return type(schema)(fail_fast(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    copy = {key: fail_fast(value) for key, value in schema.items()}
    if copy.get("type") in ("list", "set", "frozenset", "tuple"):
        copy["fail_fast"] = True
    return copy


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


SPECS: Mapping[Operation, Spec] = {
    Operation.COMPLETIONS: Spec(
        CompletionRequest,
        _attribute("openai_serving_completion", "create_completion"),
        _completion_sequences,
        ("max_tokens",),
        lambda request: request.use_beam_search,
    ),
    Operation.CHAT: Spec(
        ChatCompletionRequest,
        _attribute("openai_serving_chat", "create_chat_completion"),
        lambda request: request.n or 1,
        ("max_completion_tokens", "max_tokens"),
        lambda request: request.use_beam_search,
    ),
    Operation.RESPONSES: Spec(
        ResponsesRequest,
        _attribute("openai_serving_responses", "create_responses"),
        max_tokens=("max_output_tokens",),
        nested=lambda request: True,
    ),
    Operation.MESSAGES: Spec(
        AnthropicMessagesRequest,
        _attribute("anthropic_serving_messages", "create_messages"),
        max_tokens=("max_tokens",),
    ),
    Operation.COUNT_TOKENS: Spec(
        AnthropicCountTokensRequest,
        _attribute("anthropic_serving_messages", "count_tokens"),
        _none,
    ),
    Operation.EMBEDDINGS: Spec(
        EmbeddingRequest,
        _attribute("serving_embedding", "__call__"),
        lambda request: _count(getattr(request, "input", None)),
    ),
    Operation.TOKENIZE: Spec(
        TokenizeRequest, _attribute("serving_tokenization", "create_tokenize"), _none
    ),
    Operation.DETOKENIZE: Spec(
        DetokenizeRequest,
        _attribute("serving_tokenization", "create_detokenize"),
        _none,
    ),
}


def misfit(operation: Operation, data: Mapping[str, Any]) -> ValidationError | None:
    """The first field that does not fit its own type.

    vllm's validators read raw values, and some of them trip over a wrong type before pydantic
    can name it. A body that may be one of several models is not looked into.
    """
    fields = getattr(SPECS[operation].request, "model_fields", {})
    for name, value in data.items():
        if name in fields:
            definition: dict[str, Any] = {name: (fields[name].annotation, fields[name])}
            try:
                create_model("Field", **definition).model_validate({name: value})
            except ValidationError as error:
                return error
    return None


def describe(operation: Operation, request: Any, body_bytes: int) -> Call:
    """The call that a validated request makes.

    Raises:
        InvalidValue: it asks for no output, or for more or fewer samples than can be.

    """
    spec = SPECS[operation]
    _check_samples(getattr(request, "n", None))
    options = getattr(request, "stream_options", None)
    usage = options if isinstance(options, StreamOptions) else None
    return Call(
        operation=operation,
        request=request,
        model=request.model,
        sequences=spec.sequences(request),
        estimate=_estimate(request, body_bytes),
        nested=spec.nested(request),
        windowed=operation is Operation.EMBEDDINGS,
        max_tokens=_max_tokens(request, spec.max_tokens),
        priority=getattr(request, "priority", None) or None,
        null_usage=bool(usage and usage.include_usage and not usage.continuous_usage_stats),
    )


def _check_samples(samples: int | None) -> None:
    """The engine checks this too, but the cost is counted before the engine sees the request."""
    if samples is not None and not 1 <= samples <= envs.VLLM_MAX_N_SEQUENCES:
        raise InvalidValue(f"n must be between 1 and {envs.VLLM_MAX_N_SEQUENCES}.", "n")


def _max_tokens(request: Any, names: tuple[str, ...]) -> int | None:
    """The first of the fields that the client set; a default is not a wish."""
    for name in names:
        asked: int | None = getattr(request, name) if name in request.model_fields_set else None
        if asked is None:
            continue
        if asked < 1 and not (asked == 0 and getattr(request, "echo", False)):
            raise InvalidValue(f"{name} must be at least 1, got {asked}.", name)
        return asked
    return None


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
