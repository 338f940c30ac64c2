"""A scrape of the real service, after each kind of thing has happened to it once."""

import tempfile
from pathlib import Path

import httpx

from loadtest.servers import find, reached


def scrape(url: str) -> str:
    """What Prometheus would be told.

    Args:
        url: of /metrics.

    Raises:
        httpx.HTTPError: it does not answer.

    """
    return httpx.get(url, trust_env=False, timeout=30.0).raise_for_status().text


def of_a_service() -> str:
    """Starts one on a tiny model, uses it, and ends it: half a minute."""
    with (
        tempfile.TemporaryDirectory(prefix="deploy-check-") as scratch,
        reached([find("tidegate")], None, Path(scratch)) as (server,),
    ):
        use(server.base_url)
        return scrape(f"{server.base_url}/metrics")


def use(url: str, model: str = "model") -> None:
    """Requests that end in every way, so that all series that count by route are there.

    Args:
        url: of the API.
        model: its name.

    """
    body = {"model": model, "prompt": "Hello", "max_tokens": 8, "ignore_eos": True}
    with httpx.Client(base_url=url, trust_env=False, timeout=120.0) as client:
        for stream in (False, True):
            client.post("/v1/completions", json=body | {"stream": stream}).raise_for_status()
        client.post("/v1/completions", json=body | {"max_tokens": "many"})
