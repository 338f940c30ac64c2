"""The groups of settings: names, types, defaults and bounds of contract section 2."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.settings.secrets import masked

# The types of the errors that the validators here raise: their text is fit to be shown.
OUR_ERRORS: Final = frozenset(("impossible", "empty"))

Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Zero has a meaning for the two steps of a drain: skip this one.
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _existing_name(value: Any) -> Any:
    # Path("") is the current directory, which nobody means.
    if value == "":
        raise PydanticCustomError("empty", "must name a file")
    return value


class Group(BaseModel):
    """Frozen, and strict: `true` is not a number and `8.0` is not a count."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Secrets stay out of logs and tracebacks that show the object."""
        for name, value in super().__repr_args__():
            yield name, masked(value, name or "")


class OpenGroup(Group):
    """Further keys are arguments of vLLM; the engine room validates them at start."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _no_private_names(self) -> Self:
        for name in self.model_extra or {}:
            if name.startswith("_"):
                raise PydanticCustomError(
                    "impossible", "is internal to vLLM and cannot be set", {"key": name}
                )
        return self

    def arguments(self) -> dict[str, Any]:
        """Everything that is set, by vLLM's own name: a deep copy, without what is None."""
        # Not model_dump(): it would turn values that are not plain data into something else.
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values.update(self.model_extra or {})
        return {name: deepcopy(value) for name, value in values.items() if value is not None}


class ServerSettings(Group):
    """The HTTP server."""

    host: Name = Field(default="0.0.0.0", description="address to listen on")
    port: Port = Field(default=8000, description="port of the API")
    ops_port: Port | None = Field(
        default=None,
        description="port for probes, metrics and admin routes, which then answer only there; "
        "none: they share `port`",
    )
    root_path: str = Field(default="", description="path prefix that a proxy strips")
    cors_origins: tuple[Name, ...] = Field(
        default=(), strict=False, description="origins that browsers may call from"
    )
    keep_alive_s: Seconds = Field(
        default=650.0,
        description="idle time of a kept connection; above that of cloud load balancers",
    )
    max_body_bytes: Count = Field(default=10 * 1024 * 1024, description="largest request body")
    body_timeout_s: Seconds = Field(default=30.0, description="longest time to upload a body")
    trust_routing_headers: bool = Field(
        default=False, description="honour X-data-parallel-rank from clients"
    )
    coalesce_chunks: bool = Field(
        default=True,
        description="while the front end is busy, send what a stream gets in 42 ms as one chunk",
    )


class EngineSettings(OpenGroup):
    """Arguments of vLLM's `AsyncEngineArgs`; those that are declared here are ours to default."""

    model: Name | None = Field(
        default=None, description="model name or path; none: the embedded model"
    )
    served_model_name: Name | Annotated[list[Name], Field(min_length=1)] | None = Field(
        default=None, description="name or names that clients use for the model"
    )
    max_num_seqs: Count = Field(default=256, description="slots: sequences in one batch")
    max_num_batched_tokens: Count = Field(default=8192, description="tokens in one engine step")
    gpu_memory_utilization: float = Field(
        default=0.9,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="share of the device's memory, 0 to 1",
    )


class FrontendSettings(OpenGroup):
    """Arguments of vLLM's `BaseFrontendArgs`: templates, parsers, adapters."""


class AdmissionSettings(Group):
    """How much is accepted, and for how long it may wait."""

    max_pending: int | None = Field(
        default=None, ge=0, description="sequences that may wait; none: 4 x engine.max_num_seqs"
    )
    queue_timeout_s: Seconds = Field(
        default=30.0, description="longest wait before the first start"
    )
    ttft_slo_s: Seconds | None = Field(
        default=None, description="refuse at once when the predicted wait is above this"
    )
    lookahead: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="sequences that may wait inside the engine; none: engine.max_num_seqs / 8",
    )
    reject_status: Literal[429, 503] = Field(
        default=429, description="status of an overload refusal"
    )
    max_sequences_per_request: Count = Field(
        default=128, description="sequences that one request may ask for (embeddings: 2048)"
    )


class AuthSettings(Group):
    """Who may call."""

    keys_file: Annotated[Path, BeforeValidator(_existing_name), Field(strict=False)] | None = Field(
        default=None, description="YAML file of API keys; none: open to all"
    )


class MetricsSettings(Group):
    """What is measured, and who may read it."""

    poll_interval_s: Seconds = Field(
        default=2.0, description="time between two polls of the engine"
    )
    saturation_threshold: int = Field(
        default=100, ge=0, description="pending sequences above which one warning is logged"
    )
    require_key: bool = Field(default=False, description="/metrics needs a key too")
    step_records: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="engine steps that are kept for GET /admin/steps; 0: none",
    )


class LifecycleSettings(Group):
    """How the service stops, and when it counts as stalled or dead."""

    drain_settle_s: SecondsOrZero = Field(
        default=5.0, description="time after SIGTERM in which requests are still accepted"
    )
    drain_timeout_s: SecondsOrZero = Field(
        default=120.0, description="time for work in flight to finish"
    )
    stall_timeout_s: Seconds = Field(
        default=30.0, description="not ready after this long without an engine step"
    )
    dead_after_s: Seconds = Field(
        default=120.0, description="not live after this long without an engine step"
    )


class LoggingSettings(Group):
    """The log stream."""

    format: Annotated[Literal["json", "console"], BeforeValidator(_lower)] = Field(
        default="json", description="one JSON object a line, or readable text"
    )
    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)
    ] = Field(default="info", description="least severe level that is logged")
    log_content: bool = Field(
        default=False, description="log outputs too, and prompts at level debug"
    )
