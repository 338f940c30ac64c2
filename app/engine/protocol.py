"""What the other rooms see of the engine: a few values and one protocol."""

import enum
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

from app.errors import TidegateError
from app.workload import Capacity, DecodingStats, InHand, Step, StepRecord


class Operation(enum.StrEnum):
    """What a client can ask the engine for. The value is the label of logs and metrics."""

    COMPLETIONS = "completions"
    CHAT = "chat_completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    EMBEDDINGS = "embeddings"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


@dataclass(frozen=True)
class Call:
    """A parsed and validated request, ready to be accepted.

    Attributes:
        sequences: what it costs: m prompts × n samples, or a beam's width; 0 for the tokenizer.
        estimate: prompt tokens, a guess from its characters unless it came tokenised.
        nested: the engine is called several times for one sequence.
        windowed: its sequences need not be in the engine together: a batch of embeddings.
        max_tokens: output tokens asked for by name, per sequence.
        priority: lower is earlier; None: not said.
        null_usage: each chunk but the last says `usage: null`.

    """

    operation: Operation
    request: Any
    model: str | None
    sequences: int
    estimate: int
    nested: bool
    windowed: bool
    max_tokens: int | None
    priority: int | None
    null_usage: bool


@dataclass(frozen=True)
class Document:
    """A whole answer."""

    body: bytes
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """An answer in pieces, each one or more whole server-sent events."""

    chunks: AsyncGenerator[str, None]


class Channel(Protocol):
    """The short way of a stream, for output that needs no handler. It is closed until opened.

    Attributes:
        empties: texts that are empty are sent too.

    """

    empties: bool

    def open(self, *, empties: bool) -> None: ...

    @property
    def free(self) -> bool:
        """Whether a text can be sent now, and in its order."""

    def push(self, choice: int, text: str) -> None:
        """Send the next text of a choice, at once."""


class Engine(Protocol):
    """The running engine. Its methods belong to the event loop; `shutdown` blocks."""

    @property
    def model_name(self) -> str:
        """The first served name."""

    @property
    def dead(self) -> bool:
        """Whether the engine has died; it does not come back."""

    @property
    def step_age_s(self) -> float | None:
        """Seconds since the engine's last step; None before the first."""

    def in_hand(self) -> Mapping[int, InHand]:
        """What each engine has, by its index."""

    async def ping(self) -> None:
        """Return when every engine's loop has come round."""

    async def warm_up(self) -> None:
        """Get ready on the event loop; a first request is answered before others are taken."""

    def get_decoding_stats(self) -> DecodingStats:
        """What all engines are doing: their latest reports, bounded by what they have in hand."""

    @property
    def step_records(self) -> Sequence[StepRecord]:
        """The engines' last steps, as many as `metrics.step_records` says."""

    @property
    def capacity(self) -> Capacity:
        """What all engines together can hold."""

    def on_step(self, listener: Callable[[Step], None]) -> None:
        """Have each step reported, on the event loop; what the listener raises is logged."""

    def parse(self, operation: Operation, body: bytes) -> Call:
        """Read a request's JSON body.

        Raises:
            BadRequest: it is not JSON, or not a valid request of this operation.

        """

    async def run(
        self, call: Call, request: Request, channel: Channel | None = None
    ) -> Document | Stream:
        """Answer a call under the current permit.

        What a stream's channel was given is not among the stream's chunks.

        Raises:
            TidegateError: it cannot be answered.

        """

    def translate(self, error: Exception) -> TidegateError:
        """The client's view of any exception that came out of `run` or its stream."""

    async def models(self) -> dict[str, Any]:
        """The served models and adapters, as `GET /v1/models` lists them."""

    def schemas(self) -> Mapping[Operation, dict[str, Any]]:
        """The JSON schema of each operation's request body."""

    def shutdown(self) -> None:
        """End the engine's processes. Takes seconds."""

    def kill(self) -> None:
        """End them at once, without a chance to tidy up."""
