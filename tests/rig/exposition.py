"""A page of samples that does not change, for Prometheus to scrape."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.rig.server import LOOPBACK


@contextmanager
def exposed(text: str) -> Iterator[str]:
    """Serves the text; gives the URL of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
