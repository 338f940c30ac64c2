"""Reads a request's body with a bound on its size and on its time."""

import asyncio

from starlette.requests import Request
from starlette.types import Receive

from app.errors import BodyTimeout, BodyTooLarge, ClientDisconnected, InvalidValue


async def read_json_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body of a JSON request.

    Raises:
        InvalidValue: the content type is not JSON's.
        BodyTooLarge: it is longer than `max_bytes`, by its header or while it is read.
        BodyTimeout: it was not complete after `timeout_s` seconds.
        ClientDisconnected: the client went away before its end.

    """
    _check_type(request.headers.get("content-type", ""))
    if _declared_length(request) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request.receive, max_bytes)
    except TimeoutError:
        raise BodyTimeout(f"The body was not complete after {timeout_s:g} s.") from None


def _check_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidValue("The content type must be application/json.", "content-type")


def _declared_length(request: Request) -> int:
    declared = request.headers.get("content-length", "0")
    return int(declared) if declared.isdecimal() else 0


async def _read(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is longer than {max_bytes} bytes.")
