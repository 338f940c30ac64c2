"""Probes and metrics: what Kubernetes and Prometheus ask. And the operator's own routes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from app.api.context import exchange_of
from app.errors import TidegateError
from app.lifecycle import Lifecycle, Phase
from app.telemetry.metrics import Metrics, Snapshot
from app.workload import StepRecord

STEPS_AT_ONCE = 500
"""About a millisecond of work."""


@dataclass(frozen=True)
class StepHistory:
    """What `/admin/steps` tells: whose steps, and the steps."""

    head: Mapping[str, Any]
    records: Sequence[StepRecord]

    def lines(self) -> Iterator[bytes]:
        """JSON, the head first."""
        yield msgspec.json.encode({"kind": "steps", "schema": 1, **self.head}) + b"\n"
        for record in self.records:
            yield msgspec.json.encode(record) + b"\n"


@dataclass(frozen=True)
class Ops:
    """What the operational routes read.

    Attributes:
        observe: brings the life cycle up to date.
        refresh: brings the gauges up to date.
        snapshot: the state now.
        steps: the engines' settings and their last steps; None: steps are not kept.

    """

    lifecycle: Lifecycle
    metrics: Metrics
    observe: Callable[[], None]
    refresh: Callable[[], None]
    snapshot: Callable[[], Snapshot]
    steps: Callable[[], StepHistory] | None = None


def ops_router(ops: Ops) -> APIRouter:
    """`/livez`, `/readyz`, `/health` and `/metrics`."""
    router = APIRouter(tags=["operations"])
    lifecycle = ops.lifecycle

    @router.head("/livez", include_in_schema=False)
    @router.get("/livez")
    async def livez(request: Request) -> Response:
        exchange_of(request.scope).route = "livez"
        return _probed(ops, lifecycle.unalive, JSONResponse({"status": "alive"}))

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz")
    async def readyz(request: Request) -> Response:
        exchange_of(request.scope).route = "readyz"
        return _probed(ops, lifecycle.unready, JSONResponse({"status": "ready"}))

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health(request: Request) -> Response:
        exchange_of(request.scope).route = "health"
        return _probed(ops, lifecycle.unhealthy, Response())

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        exchange_of(request.scope).route = "metrics"
        ops.refresh()
        body, media_type = ops.metrics.expose(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    return router


def admin_router(ops: Ops) -> APIRouter:
    """`/admin/state`, `/admin/drain` and `/admin/steps`: for a port that clients cannot reach."""
    router = APIRouter(tags=["operations"], prefix="/admin")

    @router.get("/state")
    async def state(request: Request) -> JSONResponse:
        exchange_of(request.scope).route = "admin"
        return JSONResponse(state_of(ops))

    @router.post("/drain", status_code=202)
    async def drain(request: Request) -> Response:
        exchange_of(request.scope).route = "admin"
        ops.lifecycle.begin_drain()
        nothing_to_drain = ops.lifecycle.unhealthy() if ops.lifecycle.drain is None else None
        if nothing_to_drain is not None:
            return _unavailable(nothing_to_drain)
        return JSONResponse(state_of(ops), 202)

    if ops.steps is not None:
        tell = ops.steps

        @router.get("/steps")
        async def steps(request: Request) -> Response:
            exchange_of(request.scope).route = "admin"
            return StreamingResponse(_batches(tell().lines()), media_type="application/jsonl")

    return router


async def _batches(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """So many at a time that the event loop is never held for long."""
    while batch := b"".join(islice(lines, STEPS_AT_ONCE)):
        yield batch
        await asyncio.sleep(0)


def state_of(ops: Ops) -> dict[str, Any]:
    """The state for a person; the series of the same names for a machine."""
    snapshot, lifecycle = ops.snapshot(), ops.lifecycle
    return {
        "phase": snapshot.phase.value,
        "stage": lifecycle.stage.value if lifecycle.phase is Phase.STARTING else None,
        "in_flight_requests": snapshot.in_flight,
        "pending_sequences": snapshot.pending,
        "running_sequences": snapshot.running,
        "engine_stalled_s": round(snapshot.stalled_s, 3),
        "drain_left_s": round(snapshot.drain_left_s, 3),
    }


def _probed(ops: Ops, wrong: Callable[[], TidegateError | None], well: Response) -> Response:
    """What a probe is told of this very moment."""
    ops.observe()
    error = wrong()
    return well if error is None else _unavailable(error)


def _unavailable(error: TidegateError) -> JSONResponse:
    """A probe's answer: 503 whatever the reason, which the body tells."""
    return JSONResponse(error.body(), 503, error.headers())
