"""Connections that a test closes when it wants to: a request as bytes, and what comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.rig.server import Server


class Connection:
    """One TCP connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the next response."""
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers

    async def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        return await self.reader.read()

    async def close(self, *, reset: bool = False) -> None:
        """Leave, with a FIN or with a RST."""
        if reset:
            self.writer.transport.abort()
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


@asynccontextmanager
async def connect(server: Server) -> AsyncIterator[Connection]:
    """A connection that is open at least until the context's end, if it was not closed."""
    address = urlsplit(server.url)
    connection = Connection(*await asyncio.open_connection(address.hostname, address.port))
    try:
        yield connection
    finally:
        await connection.close()


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """A whole request."""
    content = json.dumps(body).encode()
    return post_head(path, len(content)) + content


def post_head(path: str, length: int) -> bytes:
    """Its beginning, up to a body of `length` bytes."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: tidegate",
        "content-type: application/json",
        f"content-length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()
