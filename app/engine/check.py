"""Checks the engine's settings without loading a model."""

from app import embedded
from app.engine.arguments import parse_arguments
from app.settings import Settings


def check(settings: Settings) -> None:
    """Parse the engine and frontend settings with vllm's own parser.

    Raises:
        SettingsError: a key or value is not one of the installed vllm's.

    """
    model = settings.engine.model or embedded.SERVED_NAME
    parse_arguments(settings, model, served_name=None)
