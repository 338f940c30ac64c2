"""What is known of one HTTP request, from its first byte to its log line."""

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.disconnect import Client
from app.auth.keys import Key
from app.errors import InternalError, TidegateError, forget_frames
from app.permit import Permit
from app.telemetry.logs import FinishedRequest, fields, request_line
from app.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CLIENT_CLOSED_REQUEST = 499

# Asked for every few seconds by machines; a log line for each would drown the others.
QUIET_ROUTES = frozenset({"livez", "readyz", "health", "metrics"})


@dataclass
class Exchange:
    """One request and what became of it. Times are monotonic seconds.

    Attributes:
        key: whose request it is; None: of nobody.
        headers: read when the response starts, and added to it.
        client: who gets the answer; None: it is over.
        begun: the answer's status has been sent.

    """

    request_id: str
    route: str = "unknown"
    model: str | None = None
    status: int = _CLIENT_CLOSED_REQUEST
    code: str | None = None
    permit: Permit | None = None
    key: Key | None = None
    headers: Callable[[], Mapping[str, str]] = dict
    client: Client | None = None
    begun: bool = False
    started_at: float = field(default_factory=time.monotonic)


def exchange_of(scope: MutableMapping[str, Any]) -> Exchange:
    """The exchange that the middleware put into the scope."""
    exchange: Exchange = scope["state"]["exchange"]
    return exchange


def request_id_of(headers: Headers) -> str:
    """The client's id where it is harmless in logs and headers, a new one elsewhere."""
    given = headers.get("x-request-id", "")
    return given if _CLIENT_ID.fullmatch(given) else secrets.token_hex(16)


def speaks_anthropic(path: str) -> bool:
    """Whether the route's clients look for Anthropic's error body."""
    return path.rstrip("/").endswith(("/v1/messages", "/v1/messages/count_tokens"))


def error_response(error: TidegateError, path: str) -> JSONResponse:
    """The answer to a request that failed before its first byte, as its route's clients read it."""
    body = error.anthropic_body() if speaks_anthropic(path) else error.body()
    return JSONResponse(body, error.status, error.headers())


class _Wire:
    """A request's channel to its client, which knows how far both sides have come."""

    def __init__(
        self,
        exchange: Exchange,
        closing: Callable[[], bool],
        headers: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        self.exchange = exchange
        self.closing = closing
        self.unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.exchange.begun = True
            self.exchange.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.exchange.request_id
            headers.update(self.exchange.headers())
            # Or the rest of the body would be read for ever, to be thrown away.
            if self.unread or self.closing():
                headers["connection"] = "close"
        await self._send(message)


class RequestContext:
    """Outermost middleware: request ids on every response, one log line and count for each.

    And no connection is kept once `closing` says so.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, closing: Callable[[], bool]) -> None:
        self.app = app
        self.metrics = metrics
        self.closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        sent = Headers(scope=scope)
        exchange = Exchange(request_id_of(sent), client=state.pop("client", None))
        state.update(exchange=exchange, request_id=exchange.request_id)

        wire = _Wire(exchange, self.closing, sent, receive, send)
        try:
            await self.app(scope, wire.receive, wire.send)
        except Exception:
            logger.exception("unforeseen", extra=fields(id=exchange.request_id))
            error = InternalError()
            exchange.code = error.code
            if not exchange.begun:
                await error_response(error, scope["path"])(scope, wire.receive, wire.send)
        finally:
            self._finish(exchange)

    def _finish(self, exchange: Exchange) -> None:
        # Both lead back here: without this each request would be left to the garbage collector, and
        # with a failure all that its frames hold, the body for one.
        exchange.client = None
        if exchange.permit is not None and exchange.permit.failure is not None:
            forget_frames(exchange.permit.failure)
        if exchange.route in QUIET_ROUTES:
            return
        line = finished(exchange, time.monotonic() - exchange.started_at)
        self.metrics.request_finished(line, exchange.code)
        request_line(line)


def finished(exchange: Exchange, duration_s: float) -> FinishedRequest:
    """What is logged and counted of an exchange that is over."""
    line = partial(
        FinishedRequest,
        id=exchange.request_id,
        key=exchange.key.name if exchange.key else None,
        route=exchange.route,
        model=exchange.model,
        status=exchange.status,
        duration_s=duration_s,
    )
    permit = exchange.permit
    if permit is None:
        return line(finish_reason=exchange.code)
    return line(
        prompt_tokens=permit.prompt_tokens,
        output_tokens=permit.output_tokens,
        queue_wait_s=permit.queue_wait_s,
        ttft_s=permit.ttft_s,
        finish_reason=exchange.code or permit.finish_reason,
    )
