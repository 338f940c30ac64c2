"""Debian's own Prometheus, scraping pods that come and go as a PodMonitor says."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tests.rig.debian import program
from tests.rig.server import LOOPBACK, Server, free_port

Labels: TypeAlias = Mapping[str, str]


class Scrapes(Server):
    """Takes its targets from a file, which it reads again each second."""

    ready_path = "/-/ready"

    def __init__(self, monitor: Mapping[str, Any], directory: Path) -> None:
        port, config = free_port(), directory / "prometheus.yml"
        self._targets = directory / "targets.json"
        self.targets([])
        config.write_text(yaml.safe_dump(scrape_config(monitor, self._targets)))
        command = [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ]
        super().__init__(command, port, directory / "prometheus.log", {})

    def targets(self, targets: Sequence[tuple[str, Labels]]) -> None:
        """What is to be scraped from now on: addresses and their labels."""
        groups = [{"targets": [address], "labels": labels} for address, labels in targets]
        new = self._targets.with_suffix(".new")
        new.write_text(json.dumps(groups))
        new.replace(self._targets)

    def instant(self, query: str) -> list[tuple[Labels, float]]:
        """What a query gives now."""
        return [(s["metric"], float(s["value"][1])) for s in self._data("query", query=query)]

    def over(self, query: str, start: float, end: float) -> list[tuple[float, float]]:
        """One series by the second, Unix times; no sample where there was none."""
        found = self._data("query_range", query=query, start=start, end=end, step=1)
        return [(float(at), float(value)) for at, value in found[0]["values"]] if found else []

    def series(self, selector: str) -> set[str]:
        """The names that a selector finds."""
        return {labels["__name__"] for labels, _ in self.instant(selector)}

    def _data(self, kind: str, **parameters: Any) -> Any:
        answer = self._probe.get(f"{self.url}/api/v1/{kind}", params=parameters)
        return answer.raise_for_status().json()["data"]["result"]


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
