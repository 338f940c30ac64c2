"""One request over HTTP: sent, read and classified.

A fast 429 is a rejection and a stream that ends early a failure: neither is a fast success.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import msgspec

from loadtest.plan import Planned
from loadtest.record import Outcome, Record
from loadtest.settings import Target
from loadtest.sse import Decoder

LEGAL_FINISH = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
REJECTIONS = frozenset({429, 503})
KEEP_ALIVE_S = 3.0
"""Below the 5 s after which common servers close an idle connection, so that none is lost."""
MAX_DETAIL = 300
UNREADABLE = (msgspec.MsgspecError, RecursionError)


@dataclass(frozen=True)
class Ask:
    """One request that is ready to be sent; `intended` is on the machine's monotonic clock."""

    planned: Planned
    prompt: str
    intended: float
    key: str | None = None
    priority: int | None = None

    def record(self) -> Record:
        """Of nothing yet."""
        return Record(
            index=self.planned.index,
            tenant=self.planned.tenant,
            intended=self.intended,
            prompt_tokens_asked=self.planned.prompt_tokens,
            output_tokens_asked=self.planned.output_tokens,
        )


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        return self.content or self.reasoning or self.reasoning_content or ""


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None

    def has_text(self) -> bool:
        part = self.delta or self.message
        return bool(self.text or (part and part.text))


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


@dataclass
class _Reading:
    """What an answer has said so far."""

    record: Record
    times: list[float] = field(default_factory=list)  # of the chunks with text
    counts: list[int] = field(default_factory=list)  # tokens of the answer after each of them
    counted: bool = True
    finish: str | None = None
    done: bool = False
    error: str | None = None

    def take(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decode(event)
        except UNREADABLE as error:
            self.error = self.error or f"unreadable event: {error}"
            return
        if chunk.error is not None:
            self.error = self.error or _message(chunk.error)
        if chunk.usage is not None:
            self.record.prompt_tokens = chunk.usage.prompt_tokens
            self.record.output_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            self.finish = choice.finish_reason or self.finish
            if choice.has_text():
                self._text(chunk.usage, now)

    def _text(self, usage: _Usage | None, now: float) -> None:
        self.times.append(now)
        self.counted = self.counted and usage is not None and usage.completion_tokens is not None
        self.counts.append((usage.completion_tokens or 0) if usage is not None else 0)

    def conclude(self) -> None:
        """Times and tokens into the record."""
        record, chunks = self.record, len(self.times)
        if not chunks:
            return
        record.first, record.last = self.times[0], self.times[-1]
        if record.output_tokens is None:
            record.output_tokens = chunks
        elif self.counted:
            record.chunk_tokens = self.counts[-1]
        elif chunks > record.output_tokens:
            record.chunk_tokens = chunks
        tokens = _steps(self.counts) if self.counted else _spread(record.output_tokens, chunks)
        pairs = zip(self.times, self.times[1:], tokens[1:], strict=False)
        record.gaps = [(later - earlier, n) for earlier, later, n in pairs]


def _steps(counts: list[int]) -> list[int]:
    return [later - earlier for earlier, later in zip([0, *counts], counts, strict=False)]


def _spread(tokens: int, chunks: int) -> list[int]:
    """Tokens of each chunk where only their sum is known: as even as can be."""
    return [(k + 1) * tokens // chunks - k * tokens // chunks for k in range(chunks)]


class Client:
    """Sends to one server over as many connections as it takes: nothing is held back."""

    def __init__(self, target: Target, model: str) -> None:
        self._target = target
        self._model = model
        path = "chat/completions" if target.endpoint == "chat" else "completions"
        self._url = f"{target.root}/v1/{path}"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._target.timeout_s),
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def send(self, ask: Ask) -> Record:
        """The request's record; whatever goes wrong is an outcome of it."""
        record = ask.record()
        await self.fill(record, ask)
        return record

    async def fill(self, record: Record, ask: Ask) -> None:
        """Send and write into `record` what becomes of it, a cancellation included."""
        body, headers = self.body(ask), self._headers(ask)
        record.sent = time.monotonic()
        try:
            async with asyncio.timeout(self._target.timeout_s):
                await self._exchange(record, body, headers)
        except TimeoutError:
            _fail(record, Outcome.TIMEOUT, f"no end after {self._target.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            lost = Outcome.CONNECTION if record.status is None else Outcome.CUT
            _fail(record, lost, f"{type(error).__name__}: {error}")
        finally:
            record.ended = time.monotonic()

    def body(self, ask: Ask) -> bytes:
        """The request as JSON."""
        target, planned = self._target, ask.planned
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": planned.output_tokens,
            "temperature": 0,
            "stream": target.stream,
        }
        if target.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt
        if target.stream:
            body["stream_options"] = {"include_usage": True}
        if target.ignore_eos:
            body["ignore_eos"] = True
        if ask.priority is not None:
            body["priority"] = ask.priority
        return _encode({**body, **target.extra})

    def _headers(self, ask: Ask) -> Mapping[str, str]:
        headers = {"Content-Type": "application/json", **self._target.headers}
        key = ask.key or self._target.key
        return {**headers, "Authorization": f"Bearer {key}"} if key else headers

    async def _exchange(self, record: Record, body: bytes, headers: Mapping[str, str]) -> None:
        async with self._session.post(
            self._url, data=body, headers=headers, allow_redirects=False
        ) as response:
            record.status = response.status
            record.request_id = response.headers.get("x-request-id")
            if response.status != 200:
                await _refused(record, response)
            elif self._target.stream:
                await self._stream(record, response)
            else:
                await self._whole(record, response)

    async def _stream(self, record: Record, response: aiohttp.ClientResponse) -> None:
        if response.content_type != "text/event-stream":
            _fail(record, Outcome.STREAM_ERROR, f"not an event stream: {response.content_type}")
            return
        reading, decoder = _Reading(record), Decoder()
        try:
            async for piece in response.content.iter_any():
                now = time.monotonic()
                for event in decoder.feed(piece):
                    reading.take(event, now)
        finally:
            reading.conclude()
        self._classify(record, reading)

    async def _whole(self, record: Record, response: aiohttp.ClientResponse) -> None:
        reading = _Reading(record)
        reading.take(await response.read(), time.monotonic())
        reading.done = True
        told = record.output_tokens
        reading.conclude()
        # One text and its end: there was no first token to see, and none to count.
        record.first, record.chunk_tokens, record.output_tokens = None, None, told
        self._classify(record, reading)

    def _classify(self, record: Record, reading: _Reading) -> None:
        asked = record.output_tokens_asked
        if reading.error is not None:
            _fail(record, Outcome.STREAM_ERROR, reading.error)
        elif not reading.done:
            _fail(record, Outcome.CUT, "the stream ended without [DONE]")
        elif reading.finish not in LEGAL_FINISH:
            _fail(record, Outcome.ILLEGAL_FINISH, f"finish_reason {reading.finish!r}")
        elif self._target.ignore_eos and record.output_tokens != asked:
            _fail(record, Outcome.WRONG_LENGTH, f"{record.output_tokens} tokens, not {asked}")
        else:
            record.outcome = Outcome.OK


async def _refused(record: Record, response: aiohttp.ClientResponse) -> None:
    record.retry_after_s = _retry_after(response.headers)
    outcome = Outcome.REJECTED if response.status in REJECTIONS else Outcome.HTTP_ERROR
    _fail(record, outcome, f"status {response.status}")
    body = await response.read()
    with contextlib.suppress(*UNREADABLE):
        _fail(record, outcome, f"status {response.status}: {_message(_decode(body).error)}")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; a date is not read."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(KeyError, ValueError):
            seconds = float(headers[name]) * unit
            if 0 <= seconds < math.inf:
                return seconds
    return None


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _fail(record: Record, outcome: Outcome, detail: str) -> None:
    record.outcome, record.detail = outcome, detail[:MAX_DETAIL]
