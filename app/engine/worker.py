"""A headless engine: another node's part of an engine that spans several.

vllm's own headless mode does it; it stops on SIGTERM or SIGINT, and when the head node goes away.
"""

from vllm.entrypoints.cli.serve import run_headless

from app.engine.arguments import parse_arguments
from app.settings import Settings, SettingsError


def run(settings: Settings) -> None:
    """Run this node's ranks until the end. Blocks.

    Raises:
        SettingsError: the settings do not describe a part of an engine.

    """
    if settings.engine.model is None:
        raise SettingsError("engine.model: a worker needs the same model as its head node")
    args = parse_arguments(settings, settings.engine.model, served_name=None)
    args.headless, args.api_server_count = True, 0
    run_headless(args)
