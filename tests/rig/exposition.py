"""A page of samples that does not change, for Prometheus to scrape."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.rig.http_thread import served
from tests.rig.server import LOOPBACK


@contextmanager
def exposed(text: str) -> Iterator[str]:
    """Serves the text; gives the URL of the server."""
    page = (200, "text/plain; version=0.0.4", text.encode())
    with served(lambda _path, _body: page) as port:
        yield f"http://{LOOPBACK}:{port}"
