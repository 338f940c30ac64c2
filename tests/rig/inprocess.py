"""The service inside the test's process: a real engine, whose faults can be caused from here."""

import asyncio
import importlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

from app.main import Service as Composition
from app.main import create_app
from app.permit import Ledger
from app.server import TidegateServer, configuration, listen
from app.settings import load
from tests.rig.logs import loggers_kept
from tests.rig.server import LOOPBACK
from tests.rig.service import ServerError, Service, Setting, until

T = TypeVar("T")

_OPTIONS = 3
"""Where the settings begin in a service's command: after `python -m app`."""


class InProcess(Service):
    """`create_app` under `TidegateServer` on a loopback port, in a thread with a loop of its own.

    Only the engine's processes are others. What belongs to the server's event loop (the ledger,
    the engine) is touched by `run` alone.
    """

    def __init__(self, settings: Mapping[str, Setting], log: Path) -> None:
        super().__init__(settings, log)
        self.effective = load(self.command[_OPTIONS:], {})
        self.api = create_app(self.effective)
        self.composition: Composition = self.api.state.service
        self.uvicorn = TidegateServer(configuration(self.effective, self.api), self.composition)
        self.loop = self.uvicorn.config.get_loop_factory()()  # type: ignore[misc]
        self.thread = threading.Thread(target=self._serve, name="in-process service")
        self._environment = dict(os.environ)

    @property
    def ledger(self) -> Ledger:
        return self.composition.ledger

    @property
    def llm(self) -> Any:
        """The engine client that vllm's serving objects were given."""
        engine: Any = self.composition.engine
        return engine.llm

    def start(self) -> None:
        self.log.touch()
        # vLLM configures the logging of the process it is in: ours, and every later test's.
        self._held.enter_context(loggers_kept())
        self._held.callback(self._stop)
        self.thread.start()

    def wait_ready(self, within: float = 120.0) -> None:
        def ready() -> bool:
            if self.composition.failure is not None or not self.thread.is_alive():
                raise ServerError("the service ended") from self.composition.failure
            return self.is_ready()

        asyncio.run(until(ready, within, every=0.1))

    def run(self, work: Callable[[], Awaitable[T]], within: float = 60.0) -> T:
        """The result of `work`, awaited on the server's loop."""

        async def awaited() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(within)

    async def on_loop(self, work: Callable[[], Awaitable[T]]) -> T:
        """`run` for a test with a loop of its own."""
        return await asyncio.to_thread(self.run, work)

    def survivors(self) -> list[psutil.Process]:
        """The engine's processes that live; another service's in this process are not ours."""
        engine: Any = self.composition.engine
        return [p for p in (engine.processes if engine else []) if _lives(p)]

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self.uvicorn.serve([listen(LOOPBACK, self.effective.server.port)]))

    def _stop(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join(60)
        os.environ.clear()
        os.environ.update(self._environment)
        # What vLLM has kept of it since the engine was there is over too.
        importlib.import_module("vllm.envs").disable_envs_cache()
        if self.thread.is_alive() or self.survivors():
            raise ServerError(f"left behind: {self.thread}, {self.survivors()}")


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
