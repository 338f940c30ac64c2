"""What a server tells of itself on its metrics page, while it is measured."""

import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

import httpx
import numpy as np

from loadtest.result import Gauges

EVERY_S = 1.0
PROBE_EVERY_S = 0.2
PROBE_TIMEOUT_S = 1.0
GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm_running_requests",
    "vllm_pending_requests",
    "vllm_kv_cache_usage_percent",
    "tidegate_demand_sequences",
)
STARTED = "process_start_time_seconds"
LOOKED_UP, FOUND = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
GROWING = (LOOKED_UP, "vllm:generation_tokens_total")
"""Never less than before, unless the server has started anew."""
_WANTED = {*GAUGES, *GROWING, STARTED, FOUND}
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


def parse(page: str) -> dict[str, float]:
    """The wanted series: sums over labels, shares the mean."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in _LINE.findall(page):
        if name in _WANTED:
            found[name].append(float(value))
    return {name: fmean(v) if "usage" in name else math.fsum(v) for name, v in found.items()}


class Watcher:
    """Watches a server from a thread of its own, between `start` and `stop`."""

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        raise NotImplementedError


@dataclass
class Scraper(Watcher):
    """Reads the page every second.

    A scrape that fails is a gap in the series, never the end of the run.
    """

    url: str
    headers: Mapping[str, str]
    _pages: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def _watch(self) -> None:
        with httpx.Client(timeout=10.0, trust_env=False, headers=dict(self.headers)) as client:
            while True:
                self._pages.append((time.monotonic(), self._read(client)))
                if self._stop.wait(EVERY_S):
                    self._pages.append((time.monotonic(), self._read(client)))
                    return

    def _read(self, client: httpx.Client) -> dict[str, float]:
        try:
            response = client.get(self.url)
            return parse(response.text) if response.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def gauges(self, start: float) -> Gauges:
        """Since the start of the run, which is a time on the monotonic clock."""
        names = [name for name in GAUGES if any(name in page for _, page in self._pages)]
        return Gauges(
            [at - start for at, _ in self._pages] if names else [],
            {name: [page.get(name) for _, page in self._pages] for name in names},
        )

    def restarted(self) -> bool:
        """Whether two pages are of two processes."""
        pages = [page for _, page in self._pages]
        started = {page[STARTED] for page in pages if STARTED in page}
        return len(started) > 1 or any(_shrunk(pages, name) for name in GROWING)

    def hit_rate(self) -> float | None:
        """Of the prompt tokens that were looked up in the prefix cache, the share it had."""
        pages = [page for _, page in self._pages if LOOKED_UP in page]
        if not pages:
            return None
        looked_up = pages[-1][LOOKED_UP] - pages[0][LOOKED_UP]
        found = pages[-1].get(FOUND, 0.0) - pages[0].get(FOUND, 0.0)
        return found / looked_up if looked_up > 0 else None


@dataclass
class Prober(Watcher):
    """Asks paths for their status in turn.

    A probe is a new connection, as a kubelet's is; one that takes longer than a second failed.
    """

    root: str
    paths: Sequence[str]
    _found: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)

    def _watch(self) -> None:
        self._found = {path: [] for path in self.paths}
        fresh = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(timeout=PROBE_TIMEOUT_S, trust_env=False, limits=fresh) as client:
            due = time.monotonic()
            while self.paths and not self._stop.wait(max(0.0, due - time.monotonic())):
                for path, found in self._found.items():
                    # From when it was due: one that waited for a slow one before it was slow too.
                    ok = self._ask(client, path)
                    found.append((time.monotonic() - due, ok))
                due += PROBE_EVERY_S

    def _ask(self, client: httpx.Client, path: str) -> bool:
        start = time.monotonic()
        try:
            answered = client.get(self.root + path).status_code == 200
        except httpx.HTTPError:
            return False
        return answered and time.monotonic() - start <= PROBE_TIMEOUT_S

    def summary(self) -> dict[str, dict[str, float | None]]:
        """By path: how many were sent and failed, and percentiles of seconds over all."""
        return {
            path: {
                "sent": len(found),
                "failed": sum(not ok for _, ok in found),
                **{
                    f"p{p}": float(np.percentile([s for s, _ in found], p)) if found else None
                    for p in (50, 99)
                },
            }
            for path, found in self._found.items()
        }


def _shrunk(pages: Sequence[Mapping[str, float]], name: str) -> bool:
    values = [page[name] for page in pages if name in page]
    return any(later < earlier for earlier, later in pairwise(values))
