"""Probes and metrics: what Kubernetes and Prometheus ask."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.api.context import exchange_of
from app.engine.protocol import Engine
from app.errors import EngineDead, TidegateError
from app.lifecycle import Lifecycle, Phase
from app.telemetry.metrics import Metrics


@dataclass(frozen=True)
class Ops:
    """What the operational routes read."""

    lifecycle: Lifecycle
    engine: Callable[[], Engine | None]
    metrics: Metrics
    refresh: Callable[[], None]

    @property
    def alive(self) -> bool:
        """Whether a restart could not help: false once the engine has died."""
        engine = self.engine()
        return self.lifecycle.phase is not Phase.FAILED and not (engine and engine.dead)

    def refusal(self) -> TidegateError | None:
        """Why the service is not ready; None when it is."""
        return self.lifecycle.refusal() or (None if self.alive else EngineDead())


def ops_router(ops: Ops) -> APIRouter:
    """`/livez`, `/readyz`, `/health` and `/metrics`."""
    router = APIRouter(tags=["operations"])

    @router.get("/livez")
    async def livez(request: Request) -> JSONResponse:
        exchange_of(request.scope).route = "livez"
        return JSONResponse({"status": "alive"}) if ops.alive else _unavailable(EngineDead())

    @router.get("/readyz")
    async def readyz(request: Request) -> JSONResponse:
        exchange_of(request.scope).route = "readyz"
        refusal = ops.refusal()
        return _unavailable(refusal) if refusal else JSONResponse({"status": "ready"})

    @router.get("/health")
    async def health(request: Request) -> Response:
        exchange_of(request.scope).route = "health"
        refusal = ops.refusal()
        return _unavailable(refusal) if refusal else Response()

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        exchange_of(request.scope).route = "metrics"
        ops.refresh()
        body, media_type = ops.metrics.expose(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    return router


def _unavailable(error: TidegateError) -> JSONResponse:
    """A probe's answer: 503 whatever the reason, which the body tells."""
    return JSONResponse(error.body(), 503, error.headers())
