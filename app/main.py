"""Composes the service: the only place where the rooms meet."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI

import app
from app.admission.door import Bounds, Door
from app.admission.gate import Gate
from app.api import errors
from app.api.about import about_router, add_openapi, vllm_version
from app.api.access import Access
from app.api.answer import Desk
from app.api.context import RequestContext
from app.api.cors import JsonCORSMiddleware
from app.api.generation import Straight, answers_of, generation_router
from app.api.models import models_router
from app.api.ops import Ops, StepHistory, admin_router, ops_router
from app.auth.keyring import RELOAD_S, Keyring
from app.auth.limits import LIMIT_HEADERS, Limiter
from app.embedded import SERVED_NAME
from app.engine.environment import prepared
from app.engine.loading import load_engine
from app.engine.processes import end, engine_processes
from app.engine.protocol import Engine
from app.errors import Draining, EngineDead
from app.lifecycle import DrainStep, Lifecycle, Phase, Stage
from app.permit import Ledger
from app.progress import Progress
from app.settings import Settings
from app.telemetry.logs import fields
from app.telemetry.metrics import Metrics, Snapshot
from app.telemetry.poller import Poller

logger = logging.getLogger(__name__)

# Of one embeddings request, as OpenAI has it.
MAX_INPUTS = 2_048

# Between two lines of the log that say how far a drain is.
DRAIN_REPORT_S = 5.0

# Objects that are made between two collections of garbage; Python's default is 700.
GC_EVERY = 10_000

EXPOSED_HEADERS = ("x-request-id", "retry-after", "retry-after-ms", *LIMIT_HEADERS)

T = TypeVar("T")
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


class Service:
    """What lives as long as the process: phase, ledger, metrics, poller and, once loaded, engine.

    Attributes:
        failure: why the engine did not start.
        hurried: there is no time for the engine's own shutdown.

    """

    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self.settings = settings
        self.lifecycle = Lifecycle(settings.lifecycle)
        self.progress = Progress()
        self.metrics = Metrics(served_name(settings), app.__version__, vllm_version())
        self.ledger = Ledger(self.metrics)
        self.gate = Gate(
            self.ledger, settings.admission.queue_timeout_s / 2, settings.admission.lookahead
        )
        self.ledger.gate = self.gate
        self.door = Door(self.gate, self._bounds(settings.engine.max_num_seqs))
        self.poller = Poller(
            self.snapshot,
            self.metrics,
            settings.metrics.poll_interval_s,
            settings.metrics.saturation_threshold,
        )
        self.keyring = keyring_of(settings)
        self.limiter = Limiter()
        self.engine: Engine | None = None
        self.failure: BaseException | None = None
        self.hurried = False
        self._question: asyncio.Task[None] | None = None
        self._reported_at: float | None = None
        self._others = engine_processes()
        if engine is not None:
            self._ready(engine)

    def _bounds(self, slots: int) -> Bounds:
        admission = self.settings.admission
        return Bounds(
            sequences=slots + self.settings.effective_max_pending,
            per_request=admission.max_sequences_per_request,
            per_window=slots,
            inputs=MAX_INPUTS,
            wait_s=admission.queue_timeout_s,
            slo_s=admission.ttft_slo_s,
            reject_status=admission.reject_status,
        )

    def _ready(self, engine: Engine) -> None:
        self.engine = engine
        self.door.bounds = self._bounds(engine.capacity.slots)
        self.gate.serve(engine.capacity, engine.get_decoding_stats)
        engine.on_step(self.gate.step)
        self.lifecycle.become(Phase.READY)

    def steps(self) -> StepHistory:
        """The engine's last steps, and whose they are."""
        head: dict[str, Any] = {
            "model": served_name(self.settings),
            "vllm_version": vllm_version(),
        }
        if self.engine is None:
            return StepHistory(head, ())
        capacity = self.engine.capacity
        head["engine"] = {
            "engines": capacity.engines,
            "max_num_seqs": capacity.slots // capacity.engines,
            "max_num_batched_tokens": capacity.step_tokens // capacity.engines,
            "kv_blocks": capacity.kv_tokens // capacity.kv_block // capacity.engines,
            "block_size": capacity.kv_block,
        }
        return StepHistory(head, self.engine.step_records)

    def take_requests(self) -> Engine:
        """The engine.

        Raises:
            Starting: it is not loaded yet.
            EngineDead: it never will be again.

        """
        refusal = self.lifecycle.refusal()
        if refusal is not None:
            raise refusal
        if self.engine is None or self.engine.dead:
            raise EngineDead
        return self.engine

    def tick(self) -> bool:
        """Look after the engine and the drain, ten times a second; true when the end has come."""
        self.observe()
        step = self.lifecycle.drain_step()
        if step is not None:
            self._report_drain(step)
        if step is DrainStep.CUT:
            self.cut()
        return self.lifecycle.failed or step in (DrainStep.CUT, DrainStep.OVER)

    def observe(self) -> None:
        """See whether the engine lives and moves; the probes are then true of this moment."""
        engine = self.engine
        if engine is None:
            return
        if engine.dead:
            self.lifecycle.become(Phase.FAILED)
            self.ledger.cut(EngineDead())
            return
        if self.lifecycle.phase is Phase.STARTING:
            return  # its first step may compile for minutes
        self.progress.observe(self.lifecycle.clock(), engine.in_hand())
        self.lifecycle.stalled_s = self.progress.stalled_s
        self.lifecycle.stuck_s = self.progress.stuck_s
        if self.progress.unsure and self._question is None:
            self._question = asyncio.create_task(self._ask(engine))

    async def _ask(self, engine: Engine) -> None:
        try:
            await engine.ping()
            self.progress.answered()
        except Exception:
            logger.exception("the engine did not answer")
        finally:
            self._question = None

    def _report_drain(self, step: DrainStep) -> None:
        now, lifecycle = self.lifecycle.clock(), self.lifecycle
        last = self._reported_at
        if last is None or now - last >= DRAIN_REPORT_S or step is DrainStep.CUT:
            self._reported_at = now
            state = fields(
                step=step.name.lower(),
                in_flight=lifecycle.in_flight,
                seconds_left=round(lifecycle.drain_left_s, 1),
            )
            logger.info("draining", extra=state)

    def cut(self) -> None:
        """End what is in flight with an error."""
        unfinished = "The server is shutting down and could not finish this request."
        self.ledger.cut(Draining(unfinished))

    def hurry(self) -> None:
        """Leave the engine no time, also when its shutdown has begun."""
        self.hurried = True
        if self.engine is not None and self.lifecycle.phase is Phase.STOPPED:
            threading.Thread(target=self.engine.kill, daemon=True).start()

    def snapshot(self) -> Snapshot:
        """The state for the gauges: the ledger's counts, and of those what the engine runs."""
        common = Snapshot(
            pending=self.ledger.unfinished,
            stalled_s=self.lifecycle.stalled_s,
            in_flight=self.lifecycle.in_flight,
            drain_left_s=self.lifecycle.drain_left_s,
            keys_reload_failed=self.keys_reload_failed,
            phase=self.lifecycle.phase,
        )
        if self.engine is None:
            return common
        stats = self.engine.get_decoding_stats()
        running = min(stats.running, self.ledger.unfinished)
        pending = self.ledger.unfinished - running
        return replace(
            common,
            pending=pending,
            running=running,
            refused=self.door.refused.sequences,
            kv_cache_usage=stats.kv_cache_usage,
            pending_tokens=self.ledger.pending_tokens(pending),
            step_age_s=self.engine.step_age_s or 0.0,
        )

    @property
    def keys_reload_failed(self) -> bool:
        return self.keyring is not None and self.keyring.failed

    async def load(self) -> None:
        """Load the engine and take requests; a failure ends the service."""
        try:
            engine = await in_thread(lambda: load_engine(self.settings, self.ledger, self._enter))
            self.engine = engine
            self._enter(Stage.WARMING)
            await engine.warm_up()
            spare_collections()
        except Exception as error:  # noqa: BLE001 - whatever it was, it has to reach the log
            self.failure = error
            self.lifecycle.become(Phase.FAILED)
            return
        self._ready(engine)
        logger.info("ready")

    def _enter(self, stage: Stage) -> None:
        self.lifecycle.stage = stage
        logger.info("starting: %s", stage.value)

    async def close(self) -> None:
        """End the engine's processes, without blocking the event loop for it."""
        self.lifecycle.become(Phase.STOPPED)
        if self.engine is None:
            await in_thread(self._abandon)
        else:
            await in_thread(self.engine.kill if self.hurried else self.engine.shutdown)

    def _abandon(self) -> None:
        """End what an unfinished start has begun."""
        end(process for process in engine_processes() if process not in self._others)


def keyring_of(settings: Settings) -> Keyring | None:
    """The keys in force; None when the service is open to all.

    Raises:
        SettingsError: the keys file is not usable.

    """
    return None if settings.auth.keys_file is None else Keyring(settings.auth.keys_file)


def spare_collections() -> None:
    """Have what is there now never looked at again by the garbage collector, and the rest rarely.

    Without it a fifth of the CPU time of a request is for collections, which find next to nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_EVERY, *gc.get_threshold()[1:])


def served_name(settings: Settings) -> str:
    """The name under which the model is served, known before it is loaded."""
    names = settings.engine.served_model_name or settings.engine.model or SERVED_NAME
    return names if isinstance(names, str) else names[0]


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread: unlike an executor's, it cannot keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed over to the event loop
            _settle(loop, future, partial(future.set_exception, error))
        else:
            _settle(loop, future, partial(future.set_result, result))

    threading.Thread(target=run, daemon=True).start()
    return await future


def _settle(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]", settle: Callable[[], None]
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: None if future.done() else settle())


def create_app(settings: Settings, engine: Engine | None = None) -> FastAPI:
    """The service's ASGI application.

    Args:
        settings: the settings, whole and checked.
        engine: a running engine; without it the application loads its own in the background.

    Returns:
        The application. `app.state.service` is the service, `app.state.ops` the application of
        the operational routes when they have a port of their own.

    """
    service = Service(settings, engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.enter_context(prepared(settings))
            stack.push_async_callback(service.close)
            await stack.enter_async_context(background(service.poller.run()))
            if service.keyring is not None:
                watch = service.keyring.watch(in_thread, RELOAD_S)
                await stack.enter_async_context(background(watch))
            if service.engine is None:
                await stack.enter_async_context(background(service.load()))
            yield

    api = _framework(service, lifespan)
    _add_api_routes(api, service)
    _guard(api, service, service.keyring)
    api.state.service = service
    api.state.ops = None
    ops = Ops(
        service.lifecycle,
        service.metrics,
        service.observe,
        service.poller.poll,
        service.snapshot,
        service.steps if settings.metrics.step_records else None,
    )
    if settings.server.ops_port is None:
        api.include_router(ops_router(ops))
    else:
        # Open: it is for the cluster, not for clients.
        api.state.ops = _framework(service, None)
        _guard(api.state.ops, service, None)
        api.state.ops.include_router(ops_router(ops))
        api.state.ops.include_router(admin_router(ops))
    return api


def _framework(service: Service, lifespan: Lifespan | None) -> FastAPI:
    api = FastAPI(
        title="Tidegate",
        version=app.__version__,
        root_path=service.settings.server.root_path,
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
    )
    errors.install(api)
    return api


def _guard(api: FastAPI, service: Service, keyring: Keyring | None) -> None:
    """Put around an application what every request passes; the last one added is the outermost."""
    if keyring is not None:
        api.add_middleware(Access, keyring=keyring)
    origins = service.settings.server.cors_origins
    if origins:
        api.add_middleware(
            JsonCORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    api.add_middleware(
        RequestContext, metrics=service.metrics, closing=lambda: service.lifecycle.closing
    )


def _add_api_routes(api: FastAPI, service: Service) -> None:
    desk = Desk(
        service.take_requests,
        service.door,
        service.settings.server,
        service.limiter,
        service.lifecycle,
    )
    answers = answers_of(desk)
    api.add_middleware(Straight, answers=answers)
    api.include_router(generation_router(answers))
    api.include_router(models_router(desk))
    api.include_router(about_router())
    add_openapi(api, lambda: service.engine)


@asynccontextmanager
async def background(
    work: Coroutine[Any, Any, None],
) -> AsyncIterator[None]:
    """Run a coroutine beside the body, and cancel it at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
