"""Answers one HTTP request with the engine: parse, accept, run, send."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from app.admission.door import Cost, Door
from app.api.body import read_json_body
from app.api.context import Exchange, exchange_of
from app.api.disconnect import unless_disconnected
from app.api.push import ShortWay
from app.api.sse import Grammar, encode, grammar_of, is_comment
from app.auth.keys import Key
from app.auth.limits import Limiter
from app.engine.protocol import Call, Document, Engine, Operation, Stream
from app.errors import (
    ClientDisconnected,
    InternalError,
    InvalidValue,
    ModelNotFound,
    TidegateError,
)
from app.lifecycle import Lifecycle
from app.permit import Claim, Permit
from app.settings import ServerSettings

# A client that takes nothing for so long is gone, whatever its connection says: it would hold
# its sequences, and the gauges with them, for ever.
READ_TIMEOUT_S = 60.0

PRIORITY_HEADER = "x-vllm-priority"

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
        door: where requests are accepted.
        limits: of a request's body.
        limiter: of what each key may use.
        lifecycle: where a request is counted while it is in hand.

    """

    engine: Callable[[], Engine]
    door: Door
    limits: ServerSettings
    limiter: Limiter
    lifecycle: Lifecycle


class Answer:
    """Answers one operation; all that a request holds is released by the time it is answered."""

    def __init__(self, desk: Desk, operation: Operation) -> None:
        self.desk = desk
        self.operation = operation

    async def __call__(self, request: Request) -> None:
        """What FastAPI reads the route's parameters from, and never calls: there are none."""
        raise NotImplementedError

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of its path.

        Raises:
            TidegateError: the request failed before its first byte.

        """
        exchange = exchange_of(scope)
        exchange.route = self.operation.value
        try:
            with self.desk.lifecycle.request():
                await self._answer(Request(scope, receive), exchange, send)
        except ClientDisconnected as gone:
            exchange.status, exchange.code = gone.status, gone.code

    async def _answer(self, request: Request, exchange: Exchange, send: Send) -> None:
        limits, limiter, key = self.desk.limits, self.desk.limiter, exchange.key
        if key is not None:
            exchange.headers = partial(limiter.headers, key)
        engine = self.desk.engine()
        with self.desk.door.gate.ledger.request_coming():
            body = await read_json_body(request, limits.max_body_bytes, limits.body_timeout_s)
        call = engine.parse(self.operation, body)
        exchange.model = call.model or engine.model_name
        check_model(key, exchange.model)
        claim = claim_of(key, call, request.headers)
        accept = self.desk.door.admit(self.operation.value, cost_of(call), claim)
        with limiter.request(key, tokens_of(call)) as charge, accept as permit:
            exchange.permit = charge.permit = permit
            assert exchange.client is not None
            way = ShortWay(exchange.client)
            work = Work(engine, call, permit, exchange, send, way)
            try:
                await unless_disconnected(exchange.client, work.do(request), permit.lost)
            except TidegateError as error:
                permit.fail(error)
                if not await work.end_stream(error):
                    raise


def cost_of(call: Call) -> Cost:
    """What the door counts of a call."""
    return Cost(call.sequences, call.estimate, nested=call.nested, windowed=call.windowed)


def tokens_of(call: Call) -> int:
    """What a request may take, as far as it is known; 0 when the engine is not needed."""
    if not call.sequences:
        return 0
    # An estimate may be 0, but something will be used.
    return max(1, call.estimate + (call.max_tokens or 0) * call.sequences)


def check_model(key: Key | None, model: str) -> None:
    """Refuse a model that a key may not use as one that does not exist.

    Raises:
        ModelNotFound: it may not.

    """
    if key is not None and not key.may_use(model):
        raise ModelNotFound(f"The model `{model}` does not exist.", "model")


def claim_of(key: Key | None, call: Call, headers: Headers) -> Claim:
    """Whose the request is, and how urgent its key allows it to be.

    Raises:
        InvalidValue: the priority is no integer.

    """
    priority = priority_of(call, headers)
    if key is None:
        return Claim(priority=priority, limit=call.max_tokens)
    return Claim(key.name, key.clamp(priority), call.max_tokens)


def priority_of(call: Call, headers: Headers) -> int:
    """What the body asks for, or else the header; 0 when neither does. Lower is earlier.

    Raises:
        InvalidValue: the header is no integer.

    """
    if call.priority is not None:
        return call.priority
    given = headers.get(PRIORITY_HEADER)
    if given is None:
        return 0
    try:
        return int(given)
    except ValueError:
        raise InvalidValue(f"{PRIORITY_HEADER} must be an integer.", PRIORITY_HEADER) from None


@dataclass
class Work:
    """What is cancelled as a whole when the client leaves: the engine's run and the sending.

    Attributes:
        way: the short one, open as long as this works.
        grammar: of the stream whose status has been sent.

    """

    engine: Engine
    call: Call
    permit: Permit
    exchange: Exchange
    send: Send
    way: ShortWay
    grammar: Grammar | None = None

    async def do(self, request: Request) -> None:
        with closing(self.way):
            await self._do(request)

    async def _do(self, request: Request) -> None:
        try:
            result = await self.engine.run(self.call, request, self.way)
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
        headers = [
            (b"content-type", document.media_type.encode("latin-1")),
            (b"content-length", str(len(document.body)).encode()),
            *((k.encode("latin-1"), v.encode("latin-1")) for k, v in document.headers.items()),
        ]
        await self._start(200, headers)
        await self.send({"type": "http.response.body", "body": document.body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_stream(self, stream: Stream) -> None:
        grammar = grammar_of(self.call.operation, self.call.null_usage)
        last: list[str] = []
        async with aclosing(self._chunks(stream, grammar)) as chunks:
            try:
                async for text in chunks:
                    if self.permit.unfinished:
                        await self._start_stream(grammar)
                        await self._send_chunk(text, more=True)
                        self.way.learn(text)
                    else:
                        # The handler has all of them by now: they go out with the end.
                        last.append(text)
            except TidegateError:
                if last:
                    await self._start_stream(grammar)
                    await self._send_chunk("".join(last), more=True)
                raise
        await self._start_stream(grammar)
        await self._send_chunk("".join(last), more=False)

    async def _start_stream(self, grammar: Grammar) -> None:
        if self.grammar is None:
            # Before it is sent: from here on nobody knows how much the client has seen.
            self.grammar = grammar
            await self._start(200, _STREAM_HEADERS)

    async def end_stream(self, error: TidegateError) -> bool:
        """Tell a failure in the stream itself; false when it has a status of its own to tell."""
        if self.grammar is None or isinstance(error, ClientDisconnected):
            return False
        self.exchange.code = error.code
        await self._send_chunk(self.grammar.failure(error), more=False)
        return True

    async def _send_chunk(self, text: str, *, more: bool) -> None:
        body = encode(text)
        self.way.sending = True
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientDisconnected from None
        finally:
            self.way.sending = False

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
