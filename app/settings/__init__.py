"""The settings object: where its values come from, what is refused, and how it is shown."""

from app.settings.errors import SettingsError, unknown_key
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
from app.settings.loading import load
from app.settings.model import Settings
from app.settings.render import describe, dump
from app.settings.secrets import masked

__all__ = [
    "AdmissionSettings",
    "AuthSettings",
    "EngineSettings",
    "FrontendSettings",
    "LifecycleSettings",
    "LoggingSettings",
    "MetricsSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "describe",
    "dump",
    "load",
    "masked",
    "unknown_key",
]
