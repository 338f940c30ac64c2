"""Starts the engine without importing vllm before its time."""

import importlib
import multiprocessing.resource_tracker
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.engine.protocol import Engine
from app.lifecycle import Stage
from app.permit import Ledger
from app.settings import Settings

_HELD = {signal.SIGINT, signal.SIGTERM}


def load_engine(settings: Settings, ledger: Ledger, report: Callable[[Stage], None]) -> Engine:
    """Import vllm and build the engine: blocks for up to minutes, so it runs in a thread.

    Args:
        settings: the service's settings.
        ledger: where the engine's client finds what it was handed.
        report: told of each stage as it begins.

    Raises:
        SettingsError: an engine or frontend setting is not one of the installed vllm.
        Exception: whatever keeps the engine from starting.

    """
    report(Stage.IMPORTING)
    runtime = importlib.import_module("app.engine.runtime")
    with _signals_held():
        engine: Engine = runtime.build(settings, ledger, report)
    return engine


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let processes that are started meanwhile ignore a signal to the whole process group.

    Ctrl-C and systemd signal every process at once, but the engine has to live until the last
    stream has ended. A spawned process inherits the signal mask of the thread that starts it.
    The resource tracker must exist before, or it would inherit the mask as well.
    """
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
