"""Starts the engine without importing vllm before its time."""

import importlib
import multiprocessing.resource_tracker
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.engine.environment import start_failure
from app.engine.failures import first_reason
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
        StartFailed: one of its processes said why it did not start.
        Exception: whatever else keeps the engine from starting.

    """
    report(Stage.IMPORTING)
    runtime = importlib.import_module("app.engine.runtime")
    with _signals_held(), first_reason(start_failure()):
        engine: Engine = runtime.build(settings, ledger, report)
    return engine


def _start_resource_tracker() -> None:
    """Start what tidies up after the engine's processes, which are killed in the end.

    That they leave something to tidy up is no news: it inherits our warning filters.
    """
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        multiprocessing.resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let processes that are started meanwhile ignore a signal to the whole process group.

    Ctrl-C and systemd signal every process at once, but the engine has to live until the last
    stream has ended. A spawned process inherits the signal mask of the thread that starts it.
    The resource tracker must exist before, or it would inherit the mask as well.
    """
    _start_resource_tracker()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
