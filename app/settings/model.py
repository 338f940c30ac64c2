"""The settings object, and the combinations of its values that cannot work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import PrivateAttr, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.settings.groups import (
    AdmissionSettings,
    AuthSettings,
    EngineSettings,
    FrontendSettings,
    LifecycleSettings,
    LoggingSettings,
    MetricsSettings,
    ServerSettings,
)


class Settings(BaseSettings):
    """Everything that can be set: built once by `load` and passed down."""

    model_config = SettingsConfigDict(
        frozen=True, strict=True, extra="forbid", hide_input_in_errors=True
    )

    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    frontend: FrontendSettings = FrontendSettings()
    admission: AdmissionSettings = AdmissionSettings()
    auth: AuthSettings = AuthSettings()
    metrics: MetricsSettings = MetricsSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    logging: LoggingSettings = LoggingSettings()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def build(cls, values: Mapping[str, Any], origins: Mapping[str, str]) -> Self:
        """Settings from nested plain data; `origins` says where each dotted key came from.

        Raises pydantic's ValidationError.
        """
        settings = cls(**values)
        settings._origins = dict(origins)
        return settings

    @property
    def effective_max_pending(self) -> int:
        """Sequences that may wait for a slot."""
        if self.admission.max_pending is not None:
            return self.admission.max_pending
        return 4 * self.engine.max_num_seqs

    def origin(self, key: str) -> str:
        """Where the value of a dotted key came from, in words; `default` when nobody set it."""
        return origin_of(key, self._origins)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` has merged.

        The library's own sources cannot fill groups with open keys, know no origins, and would
        make `Settings()` in a test depend on the environment.
        """
        return (init_settings,)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for rule in RULES:
            if rule.broken(self):
                raise PydanticCustomError("impossible", rule.reason, {"keys": rule.keys})
        return self


@dataclass(frozen=True)
class Rule:
    """One impossible combination; `keys` are what a user may have set to get there."""

    keys: tuple[str, ...]
    broken: Callable[[Settings], bool]
    reason: str


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """The origin of a dotted key, or of the nearest key above it."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return "default"


def _ours(name: str) -> Rule:
    return Rule(
        (f"engine.{name}",),
        lambda s: name in (s.engine.model_extra or {}),
        "cannot be set, admission is ours; use admission.max_pending",
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        ("server.ops_port", "server.port"),
        lambda s: s.server.ops_port == s.server.port,
        "must differ from server.port",
    ),
    Rule(
        ("auth.keys_file",),
        lambda s: (
            s.auth.keys_file is not None and s.server.ops_port is None and not s.metrics.require_key
        ),
        "needs server.ops_port, or metrics.require_key: true; otherwise Prometheus, which has "
        "no key, would be locked out of /metrics",
    ),
    Rule(
        ("metrics.step_records",),
        lambda s: s.metrics.step_records > 0 and s.server.ops_port is None,
        "needs server.ops_port, where GET /admin/steps is",
    ),
    Rule(
        ("lifecycle.stall_timeout_s", "lifecycle.dead_after_s"),
        lambda s: s.lifecycle.stall_timeout_s > s.lifecycle.dead_after_s,
        "does not fit: lifecycle.stall_timeout_s (not ready) may not be above "
        "lifecycle.dead_after_s (not live)",
    ),
    # vllm/config/scheduler.py refuses this too, but only after the model is on its way.
    Rule(
        ("engine.max_num_batched_tokens", "engine.max_num_seqs"),
        lambda s: s.engine.max_num_batched_tokens < s.engine.max_num_seqs,
        "does not fit: engine.max_num_batched_tokens must be at least engine.max_num_seqs, one "
        "token for each slot",
    ),
    _ours("max_num_queued_reqs"),
    _ours("max_num_queued_tokens"),
)
