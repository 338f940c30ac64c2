"""Debian's own Prometheus, scraping pods that come and go as a PodMonitor says."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.rig.prometheus import Prometheus


class Scrapes(Prometheus):
    """Takes its targets from a file, which it reads again each second."""

    def __init__(self, monitor: Mapping[str, Any], directory: Path) -> None:
        self._targets = directory / "targets.json"
        self.follow([])
        super().__init__(scrape_config(monitor, self._targets), directory)

    def follow(self, targets: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """What is to be scraped from now on: addresses and their labels."""
        groups = [{"targets": [address], "labels": labels} for address, labels in targets]
        new = self._targets.with_suffix(".new")
        new.write_text(json.dumps(groups))
        new.replace(self._targets)


def scrape_config(monitor: Mapping[str, Any], targets: Path) -> dict[str, Any]:
    """Of a PodMonitor with one endpoint, as the Prometheus operator makes it."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    metadata = monitor["metadata"]
    job = {
        "job_name": f"{metadata['namespace']}/{metadata['name']}",
        "metrics_path": endpoint.get("path", "/metrics"),
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint.get("scrapeTimeout", endpoint["interval"]),
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
    }
    return {"scrape_configs": [job]}
