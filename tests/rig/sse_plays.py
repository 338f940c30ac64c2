"""What the scripted server answers to one request: bytes and the times at which they are due.

A script is a JSON object; `play` names what is done to an otherwise normal answer:

normal            as vLLM streams it
bundled           four tokens in a chunk
bundled_events    four events in one write
split             each event in four writes, cut inside a UTF-8 character and a CRLF
empty             chunks without text before the first one and between
comments          keep-alive comments before the first chunk and between
reasoning         the first half of a chat's tokens are reasoning
slow_headers      the head is late
no_usage          no `usage`, though it was asked for
wrong_usage       `usage` has two tokens more than were sent
short             two tokens fewer than were asked for
illegal_finish    finish_reason "abort"
no_finish         finish_reason null to the end
error             an error event after `after` tokens, no [DONE]
error_then_done   the same, with [DONE]
invalid_json      an event that is no JSON after `after` tokens; no JSON at all when not streamed
raw               the strings in `events`, each as an event, then [DONE]; not streamed: as the body
cut               the connection is closed after `after` tokens
cut_clean         the answer ends after `after` tokens, by HTTP properly, without [DONE]
reset             the connection is reset after `after` tokens
stall             nothing comes after `after` tokens
hang              nothing comes at all
drop              the connection is closed without an answer
garbage           something that is not HTTP
refuse            429 with Retry-After and retry-after-ms
refuse_503        the same with 503
http_500          500
"""

import dataclasses
import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from typing import Any, NamedTuple

MODEL = "scripted"
WORD = " tök"
INVALID = '{"choices": ['
EVENTS_PER_WRITE = 4
PIECE_S = 0.0005
"""Between the writes of an event that is split: enough for the kernel not to join them."""


@dataclass(frozen=True)
class Script:
    """How a request is answered; see the module for the plays.

    Attributes:
        ttft_s: from the request's last byte to the first chunk with text, which is never before
            the head.
        itl_s: between chunks with text.
        head_s: from the request's last byte to the head of the answer.
        tokens: that are sent; None: as many as were asked for.
        after: how many tokens come before a fault.
        usage_off_by: added to the tokens in `usage`; None: no `usage`.
        reasoning: the field of a chat's delta that carries the first half of the tokens.
        retry_after_ms: of a refusal; Retry-After is always 2 seconds.

    """

    play: str = "normal"
    ttft_s: float = 0.0
    itl_s: float = 0.0
    head_s: float = 0.0
    tokens: int | None = None
    tokens_per_chunk: int = 1
    after: int = 3
    finish: str | None = "length"
    usage_off_by: int | None = 0
    reasoning: str | None = None
    retry_after_ms: str = "1500"
    events: tuple[str, ...] = ()

    @property
    def first_s(self) -> float:
        return max(self.ttft_s, self.head_s)


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "bundled": {"tokens_per_chunk": 4},
    "reasoning": {"reasoning": "reasoning_content"},
    "slow_headers": {"head_s": 0.05},
    "no_usage": {"usage_off_by": None},
    "wrong_usage": {"usage_off_by": 2},
    "illegal_finish": {"finish": "abort"},
    "no_finish": {"finish": None},
}
PLAIN = frozenset({"normal", "bundled_events", "split", "empty", "comments", "short", *PRESETS})
REFUSALS = {"refuse": 429, "refuse_503": 503, "http_500": 500}
FAULTS = frozenset(
    {"error", "error_then_done", "invalid_json", "cut", "cut_clean", "reset", "stall"}
)
SILENT = frozenset({"hang", "drop", "garbage"})
PLAYS = frozenset({*PLAIN, *REFUSALS, *FAULTS, *SILENT, "raw"})


def script(fields: Mapping[str, Any]) -> Script:
    """A script from JSON: the play's presets, then the given fields. Raises ValueError."""
    play = fields.get("play", "normal")
    if play not in PLAYS:
        raise ValueError(f"no such play: {play!r}")
    try:
        found = Script(**{**PRESETS.get(play, {}), **fields})
    except TypeError as error:
        raise ValueError(str(error)) from None
    return dataclasses.replace(found, events=tuple(found.events))


@dataclass(frozen=True)
class Asked:
    """A request that was understood."""

    script: Script
    chat: bool
    stream: bool
    prompt: str
    prompt_tokens: int
    max_tokens: int
    request_id: str
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def tokens(self) -> int:
        if self.script.tokens is not None:
            return self.script.tokens
        return max(1, self.max_tokens - 2) if self.script.play == "short" else self.max_tokens


def asked(
    body: Mapping[str, Any], default: Mapping[str, Any], chat: bool, request_id: str
) -> Asked:
    """A request from its body; the fields of its `script` go before those of the default.

    Raises ValueError, KeyError or TypeError.
    """
    prompt, tokens = _prompt(body, chat)
    options = body.get("stream_options") or {}
    return Asked(
        script=script({**default, **body.get("script", {})}),
        chat=chat,
        stream=bool(body.get("stream")),
        prompt=prompt,
        prompt_tokens=tokens,
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or 16,
        request_id=request_id,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
    )


def _prompt(body: Mapping[str, Any], chat: bool) -> tuple[str, int]:
    """What it says, and how many tokens that is."""
    if chat:
        said = " ".join(str(message["content"]) for message in body["messages"])
        return said, len(said.split()) + 7
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return prompt, len(prompt.split()) + 1
    return json.dumps(prompt), len(prompt)


class Write(NamedTuple):
    """Bytes, due so many seconds after the request was read, and the tokens of each chunk with
    text that is whole with them.
    """

    at: float
    data: bytes
    texts: tuple[int, ...] = ()


class End(enum.Enum):
    """What becomes of the connection after the last write."""

    KEPT = enum.auto()
    CLOSED = enum.auto()
    RESET = enum.auto()
    LEFT_OPEN = enum.auto()


ENDS = {
    "cut": End.CLOSED,
    "reset": End.RESET,
    "stall": End.LEFT_OPEN,
    "hang": End.LEFT_OPEN,
    "drop": End.CLOSED,
    "garbage": End.CLOSED,
}


def answer(request: Asked) -> tuple[Iterator[Write], End]:
    """Everything that is sent, and the end."""
    play, at = request.script.play, request.script.first_s
    if play in SILENT:
        writes = [Write(at, b"~*garbage*~\r\n\r\n" if play == "garbage" else b"")]
        return iter(writes if play != "hang" else ()), ENDS[play]
    if play in REFUSALS:
        return iter([Write(at, _refusal(request.script))]), End.KEPT
    writing = _streamed(request) if request.stream else iter([_whole(request)])
    return writing, ENDS.get(play, End.KEPT)


# -- one document


def document(
    status: int, content: bytes, headers: Iterable[str] = (), kind: str = "application/json"
) -> bytes:
    """An HTTP answer with a body of known length."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(content)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def failure(status: int, message: str, headers: Iterable[str] = ()) -> bytes:
    """An HTTP answer with OpenAI's error body."""
    error = {"message": message, "type": HTTPStatus(status).phrase, "param": None, "code": status}
    return document(status, json.dumps({"error": error}).encode(), headers)


def _refusal(played: Script) -> bytes:
    status = REFUSALS[played.play]
    wait = ["Retry-After: 2", f"retry-after-ms: {played.retry_after_ms}"] if status != 500 else []
    return failure(status, f"scripted {status}", wait)


def _whole(request: Asked) -> Write:
    """The answer to a request that is not streamed, at the time of a stream's end."""
    played, count = request.script, request.tokens
    at = played.first_s + played.itl_s * (-(-count // played.tokens_per_chunk) - 1)
    words = WORD * count
    said = {"message": {"role": "assistant", "content": words}} if request.chat else {"text": words}
    whole: dict[str, Any] = {
        "id": request.request_id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "finish_reason": played.finish, **said}],
    }
    if played.usage_off_by is not None:
        whole["usage"] = _usage(request, count + played.usage_off_by)
    data = document(200, json.dumps(whole).encode(), _identity(request))
    if played.play in ("raw", "invalid_json"):
        data = document(200, "".join(played.events or [INVALID]).encode(), _identity(request))
    if played.play in ENDS:
        data = data[: -len(words) // 2]
    return Write(at, data, (count,))


def _identity(request: Asked) -> list[str]:
    return [f"X-Request-Id: {request.request_id}"]


def _usage(request: Asked, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + completion,
        "completion_tokens": completion,
    }


# -- a stream


def _event(content: str) -> bytes:
    return f"data: {content}\n\n".encode()


DONE = _event("[DONE]")


class _Chunks:
    """The events of one request."""

    def __init__(self, request: Asked) -> None:
        self._request = request
        self._made: dict[tuple[str, int, str | None], bytes] = {}

    def text(self, tokens: int, sent: int, field: str = "content", end: str | None = None) -> bytes:
        """A chunk with so many tokens, which are `sent` in all with it."""
        if self._request.continuous_usage:
            usage = _usage(self._request, sent)
            return _event(self._chunk({field: WORD * tokens}, end, usage=usage))
        key = (field, tokens, end)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = _event(self._chunk({field: WORD * tokens}, end))
        return made

    def other(self, delta: Mapping[str, Any], end: str | None = None) -> bytes:
        """A chunk without text."""
        return _event(self._chunk(delta, end))

    def usage(self, completion: int) -> bytes:
        whole = {**self._envelope(), "choices": [], "usage": _usage(self._request, completion)}
        return _event(json.dumps(whole))

    def _chunk(self, delta: Mapping[str, Any], end: str | None, **more: Any) -> str:
        said = {"delta": delta} if self._request.chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": end}
        return json.dumps({**self._envelope(), "choices": [choice], **more}, ensure_ascii=False)

    def _envelope(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._request.chat else "text_completion"
        return {"id": self._request.request_id, "object": kind, "created": 0, "model": MODEL}


def _streamed(request: Asked) -> Iterator[Write]:
    """The head, the events as chunks of HTTP, and the end of the body if there is one."""
    played = request.script
    head = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream; charset=utf-8"]
    head += ["Transfer-Encoding: chunked", *_identity(request), "", ""]
    yield Write(played.head_s, "\r\n".join(head).encode())
    events = _raw(played) if played.play == "raw" else _events(request)
    shape = {"bundled_events": _bundled, "split": _split}.get(played.play, iter)
    at = played.head_s
    for write in shape(events):
        at = write.at
        yield Write(at, b"%x\r\n%b\r\n" % (len(write.data), write.data), write.texts)
    if played.play not in ENDS:
        yield Write(at, b"0\r\n\r\n")
    else:
        yield Write(at + max(played.itl_s, PIECE_S), b"")


def _raw(played: Script) -> Iterator[Write]:
    yield from (Write(played.first_s, _event(event)) for event in played.events)
    yield Write(played.first_s, DONE)


def _events(request: Asked) -> Iterator[Write]:
    played, chunks, at = request.script, _Chunks(request), request.script.first_s
    if request.chat:
        yield Write(played.head_s, chunks.other({"role": "assistant", "content": ""}))
    nothing = {"empty": chunks.other({"content": ""}), "comments": b": ping\n\n"}.get(played.play)
    if nothing is not None:
        yield from (Write(share * at, nothing) for share in (0.0, 0.5))
    faulty = played.play in FAULTS
    for number, (sent, tokens) in enumerate(_portions(request)):
        at = played.first_s + number * played.itl_s
        if faulty and sent > played.after:
            break
        if nothing is not None and number:
            yield Write(at - played.itl_s / 2, nothing)
        yield Write(at, _text(request, chunks, sent, tokens), (tokens,))
    yield from (Write(at, data) for data in (_fault(played) if faulty else _tail(request, chunks)))


def _portions(request: Asked) -> Iterator[tuple[int, int]]:
    """Of each chunk with text: the tokens sent with it in all, and its own."""
    total, each = request.tokens, request.script.tokens_per_chunk
    for before in range(0, total, each):
        sent = min(total, before + each)
        yield sent, sent - before


def _text(request: Asked, chunks: _Chunks, sent: int, tokens: int) -> bytes:
    """Completions end with their last text, chats with a chunk of its own."""
    if request.chat:
        field = request.script.reasoning if sent <= request.tokens // 2 else None
        return chunks.text(tokens, sent, field or "content")
    return chunks.text(tokens, sent, end=request.script.finish if sent == request.tokens else None)


def _tail(request: Asked, chunks: _Chunks) -> Iterator[bytes]:
    played = request.script
    if request.chat:
        yield chunks.other({}, played.finish)
    if request.include_usage and played.usage_off_by is not None:
        yield chunks.usage(request.tokens + played.usage_off_by)
    yield DONE


def _fault(played: Script) -> Iterator[bytes]:
    if played.play in ("error", "error_then_done"):
        error = {"message": "scripted error", "type": "InternalServerError", "code": 500}
        yield _event(json.dumps({"error": error}))
    if played.play == "invalid_json":
        yield _event(INVALID)
    if played.play in ("error_then_done", "invalid_json"):
        yield DONE


# -- what becomes of events on their way


def _bundled(events: Iterable[Write]) -> Iterator[Write]:
    """Several events in one write, at the time of the first of them with text."""
    held: list[Write] = []
    for event in events:
        held.append(event)
        if sum(len(one.texts) for one in held) == EVENTS_PER_WRITE:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(events: list[Write]) -> Write:
    at = next((event.at for event in events if event.texts), events[-1].at)
    texts = tuple(tokens for event in events for tokens in event.texts)
    return Write(at, b"".join(event.data for event in events), texts)


def _split(events: Iterable[Write]) -> Iterator[Write]:
    """Lines end in CRLF; cut in the first non-ASCII character and between each CR and LF.

    The last piece is at the event's time: nobody can read the event before it.
    """
    for event in events:
        data = event.data.replace(b"\n", b"\r\n")
        character = next((i for i, byte in enumerate(data) if byte > 127), len(data) // 2)
        edges = [0, character + 1, len(data) - 3, len(data) - 1, len(data)]
        pieces = [data[start:end] for start, end in pairwise(edges)]
        last = len(pieces) - 1
        for number, piece in enumerate(pieces):
            texts = event.texts if number == last else ()
            yield Write(event.at - (last - number) * PIECE_S, piece, texts)
