"""Answers one HTTP request with the engine: parse, accept, run, send."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.body import read_json_body
from app.api.context import Exchange, exchange_of
from app.api.disconnect import unless_disconnected
from app.api.sse import Grammar, grammar_of, is_comment
from app.engine.protocol import Call, Document, Engine, Operation, Stream
from app.errors import ClientDisconnected, InternalError, TidegateError
from app.permit import Ledger, Permit
from app.settings import ServerSettings

# A client that takes nothing for so long is gone, whatever its connection says: it would hold
# its sequences, and the gauges with them, for ever.
READ_TIMEOUT_S = 60.0

# x-accel-buffering tells nginx to pass a stream on as it comes.
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True)
class Desk:
    """What every answer needs.

    Attributes:
        engine: gives the engine, or raises why no request can be taken now.
        ledger: where requests are accepted.
        limits: of a request's body.

    """

    engine: Callable[[], Engine]
    ledger: Ledger
    limits: ServerSettings


class Answer(Response):
    """The response to one operation; all that it holds is released by the time it is sent."""

    def __init__(self, desk: Desk, operation: Operation) -> None:
        super().__init__()
        self.desk = desk
        self.operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        try:
            await self._answer(Request(scope, receive), exchange, send)
        except ClientDisconnected as gone:
            exchange.status, exchange.code = gone.status, gone.code

    async def _answer(self, request: Request, exchange: Exchange, send: Send) -> None:
        engine = self.desk.engine()
        limits = self.desk.limits
        body = await read_json_body(request, limits.max_body_bytes, limits.body_timeout_s)
        call = engine.parse(self.operation, body)
        exchange.model = call.model or engine.model_name
        accept = self.desk.ledger.permit(
            self.operation.value, call.sequences, call.estimate, nested=call.nested
        )
        with accept as permit:
            exchange.permit = permit
            permit.max_tokens = call.max_tokens
            work = Work(engine, call, permit, exchange, send)
            try:
                await unless_disconnected(request.receive, work.do(request))
            except TidegateError as error:
                permit.fail(error)
                raise


@dataclass(frozen=True)
class Work:
    """What is cancelled as a whole when the client leaves: the engine's run and the sending."""

    engine: Engine
    call: Call
    permit: Permit
    exchange: Exchange
    send: Send

    async def do(self, request: Request) -> None:
        try:
            result = await self.engine.run(self.call, request)
        except TidegateError as error:
            # The handler's error may only be what followed from the first failure.
            raise self.permit.failure or error from error
        if self.permit.failure is not None:
            raise self.permit.failure
        if isinstance(result, Document):
            await self._send_document(result)
        else:
            await self._send_stream(result)

    async def _send_document(self, document: Document) -> None:
        headers = dict(document.headers or {})
        response = Response(document.body, 200, headers, document.media_type)
        await self._start(200, response.raw_headers)
        await self.send({"type": "http.response.body", "body": document.body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_stream(self, stream: Stream) -> None:
        grammar = grammar_of(self.call.operation, self.call.null_usage)
        started = False
        last = b""
        try:
            async with aclosing(self._chunks(stream, grammar)) as chunks:
                async for text in chunks:
                    if not started:
                        await self._start(200, _STREAM_HEADERS)
                        started = True
                    await self._send_chunk(text)
        except TidegateError as error:
            if not started or isinstance(error, ClientDisconnected):
                raise
            self.permit.fail(error)
            self.exchange.code = error.code
            last = grammar.failure(error).encode()
        if not started:
            await self._start(200, _STREAM_HEADERS)
        await self.send({"type": "http.response.body", "body": last})

    async def _send_chunk(self, text: str) -> None:
        # A lone surrogate cannot be sent; it is what the engine made of broken bytes.
        body = text.encode("utf-8", "replace")
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:
            raise ClientDisconnected from None

    def _blame(self, failure: TidegateError | None) -> TidegateError | None:
        """What a handler trips over once there is an output is not the request's fault."""
        if failure is None or self.permit.ttft_s is None or failure.status >= InternalError.status:
            return failure
        return InternalError()

    async def _chunks(self, stream: Stream, grammar: Grammar) -> AsyncGenerator[str, None]:
        """The handler's chunks, held back until the answer's status is known.

        Raises:
            TidegateError: the first failure; what the handler made of it is dropped.

        """
        held: list[str] = []
        try:
            async with aclosing(stream.chunks) as chunks:
                async for chunk in chunks:
                    failure = self.permit.failure or self._blame(grammar.failure_in(chunk))
                    if failure is not None:
                        raise failure
                    if is_comment(chunk) and not self.permit.started:
                        continue
                    held.append(grammar.render(chunk))
                    if self.permit.started:
                        yield "".join(held)
                        held.clear()
        except Exception as error:
            raise self.permit.failure or self.engine.translate(error) from error
        if self.permit.failure is not None:
            raise self.permit.failure
        if held:
            yield "".join(held)
