"""A small HTTP server in a thread, for those who only ask or tell."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias

from tests.rig.server import LOOPBACK

Answer: TypeAlias = tuple[int, str, bytes]
"""Status, media type, body."""


@contextmanager
def served(
    answer: Callable[[str, bytes], Answer],
    *,
    protocol: str = "HTTP/1.0",
    prepare: Callable[[ThreadingHTTPServer], None] = lambda _: None,
) -> Iterator[int]:
    """The port, until the end of the context.

    Args:
        answer: to a path and a body.
        protocol: that it speaks.
        prepare: sees the server before it answers.

    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["content-length"])))

        def _answer(self, body: bytes) -> None:
            status, media_type, found = answer(self.path, body)
            self.send_response(status)
            self.send_header("content-type", media_type)
            self.send_header("content-length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        prepare(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
