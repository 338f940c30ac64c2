"""What is known of one HTTP request, from its first byte to its log line."""

import re
import time
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.permit import Permit
from app.telemetry.logs import FinishedRequest, request_line
from app.telemetry.metrics import Metrics

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CLIENT_CLOSED_REQUEST = 499

# Asked for every few seconds by machines; a log line for each would drown the others.
QUIET_ROUTES = frozenset({"livez", "readyz", "health", "metrics"})


@dataclass
class Exchange:
    """One request and what became of it. Times are monotonic seconds."""

    request_id: str
    route: str = "unknown"
    model: str | None = None
    status: int = _CLIENT_CLOSED_REQUEST
    code: str | None = None
    permit: Permit | None = None
    started_at: float = field(default_factory=time.monotonic)


def exchange_of(scope: MutableMapping[str, Any]) -> Exchange:
    """The exchange that the middleware put into the scope."""
    exchange: Exchange = scope["state"]["exchange"]
    return exchange


def request_id_of(headers: Headers) -> str:
    """The client's id where it is harmless in logs and headers, a new one elsewhere."""
    given = headers.get("x-request-id", "")
    return given if _CLIENT_ID.fullmatch(given) else uuid.uuid4().hex


class RequestContext:
    """Outermost middleware: request ids on every response, one log line and count for each."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(request_id_of(HTTPConnection(scope).headers))
        scope.setdefault("state", {}).update(exchange=exchange, request_id=exchange.request_id)

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = exchange.request_id
            await send(message)

        try:
            await self.app(scope, receive, stamped)
        finally:
            self._finish(exchange)

    def _finish(self, exchange: Exchange) -> None:
        if exchange.route in QUIET_ROUTES:
            return
        line = finished(exchange, time.monotonic() - exchange.started_at)
        self.metrics.request_finished(line, exchange.code)
        request_line(line)


def finished(exchange: Exchange, duration_s: float) -> FinishedRequest:
    """What is logged and counted of an exchange that is over."""
    permit = exchange.permit
    if permit is None:
        return FinishedRequest(
            id=exchange.request_id,
            route=exchange.route,
            model=exchange.model,
            status=exchange.status,
            duration_s=duration_s,
            finish_reason=exchange.code,
        )
    return FinishedRequest(
        id=exchange.request_id,
        route=exchange.route,
        model=exchange.model,
        status=exchange.status,
        duration_s=duration_s,
        prompt_tokens=permit.prompt_tokens,
        output_tokens=permit.output_tokens,
        queue_wait_s=permit.queue_wait_s,
        ttft_s=permit.ttft_s,
        finish_reason=exchange.code or permit.finish_reason,
    )
