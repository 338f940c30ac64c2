"""What is known of one HTTP request, from its first byte to its log line."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.disconnect import Client
from app.auth.keys import Key
from app.errors import InternalError, TidegateError, forget_frames
from app.permit import Permit
from app.telemetry.logs import FinishedRequest, fields, request_line
from app.telemetry.metrics import Metrics

RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

logger = logging.getLogger(__name__)

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CLIENT_CLOSED_REQUEST = 499
_OF_PERMIT = ("prompt_tokens", "output_tokens", "queue_wait_s", "ttft_s")

# Asked for every few seconds by machines; a log line for each would drown the others.
QUIET_ROUTES = frozenset({"livez", "readyz", "health", "metrics"})


@dataclass
class Exchange:
    """One request and what became of it. Times are monotonic seconds.

    Attributes:
        key: whose request it is; None: of nobody.
        headers: read when the response starts, and added to it.
        client: who gets the answer; None: it is over.

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
    started_at: float = field(default_factory=time.monotonic)


def exchange_of(scope: MutableMapping[str, Any]) -> Exchange:
    """The exchange that the middleware put into the scope."""
    exchange: Exchange = scope["state"]["exchange"]
    return exchange


def request_id_of(scope: Scope) -> str:
    """The client's id where it is harmless in logs and headers, a new one elsewhere."""
    given = header_of(scope, b"x-request-id").decode("latin-1")
    return given if _CLIENT_ID.fullmatch(given) else uuid.uuid4().hex


def header_of(scope: Scope, name: bytes, default: bytes = b"") -> bytes:
    """The first value of a header, whose name is given in lower case."""
    return next((value for key, value in scope["headers"] if key == name), default)


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
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.exchange = exchange
        self.closing = closing
        self.started = False
        length = header_of(scope, b"content-length", b"0")
        self.unread = length != b"0" or bool(header_of(scope, b"transfer-encoding"))
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.exchange.status = message["status"]
            more = {"x-request-id": self.exchange.request_id, **self.exchange.headers()}
            # Or the rest of the body would be read for ever, to be thrown away.
            if self.unread or self.closing():
                more["connection"] = "close"
            message = {**message, "headers": _with(message["headers"], more)}
        await self._send(message)


def _with(headers: Iterable[tuple[bytes, bytes]], more: Mapping[str, str]) -> RawHeaders:
    """Headers with others, which take the place of those of the same name."""
    added = [(name.lower().encode("latin-1"), v.encode("latin-1")) for name, v in more.items()]
    names = {name for name, _ in added}
    return [*(header for header in headers if header[0].lower() not in names), *added]


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
        request_id = request_id_of(scope)
        exchange = Exchange(request_id, client=state.pop("client", None))
        state.update(exchange=exchange, request_id=exchange.request_id)

        wire = _Wire(exchange, self.closing, scope, receive, send)
        try:
            await self.app(scope, wire.receive, wire.send)
        except Exception:
            logger.exception("unforeseen", extra=fields(id=exchange.request_id))
            error = InternalError()
            exchange.code = error.code
            if not wire.started:
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
    permit, known = exchange.permit, dict[str, Any]()
    if permit is not None:
        known = {name: getattr(permit, name) for name in _OF_PERMIT}
    return FinishedRequest(
        id=exchange.request_id,
        key=exchange.key.name if exchange.key else None,
        route=exchange.route,
        model=exchange.model,
        status=exchange.status,
        duration_s=duration_s,
        finish_reason=exchange.code or (permit.finish_reason if permit else None),
        **known,
    )
