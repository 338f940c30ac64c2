"""Debian's own Prometheus, scraping one server."""

from pathlib import Path
from typing import TypeAlias

import httpx

from tests.rig.debian import program
from tests.rig.server import LOOPBACK, Server, free_port

Labels: TypeAlias = frozenset[tuple[str, str]]

TARGET_LABELS = frozenset({"__name__", "instance", "job"})
"""Added by Prometheus itself."""

_CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: tidegate
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus(Server):
    """Scrapes each second; its first sample comes some six seconds after the start."""

    ready_path = "/-/ready"

    def __init__(self, scraped: Server, directory: Path) -> None:
        port, config = free_port(), directory / "prometheus.yml"
        config.write_text(_CONFIG.format(target=scraped.ops_url.removeprefix("http://")))
        command = [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ]
        super().__init__(command, port, directory / "log", {})

    def query(self, expression: str) -> dict[Labels, float]:
        """An instant vector, without the labels that every sample of the target has."""
        answer = self._probe.get(f"{self.url}/api/v1/query", params={"query": expression})
        data = answer.raise_for_status().json()["data"]
        if data["resultType"] != "vector":
            raise AssertionError(f"{expression} gives a {data['resultType']}")
        return {
            frozenset((k, v) for k, v in sample["metric"].items() if k not in TARGET_LABELS): float(
                sample["value"][1]
            )
            for sample in data["result"]
        }

    def target(self) -> dict[str, str]:
        """What Prometheus says of its only target, once it has one: `health`, `lastError`, …"""
        answer: httpx.Response = self._probe.get(f"{self.url}/api/v1/targets")
        targets: list[dict[str, str]] = answer.raise_for_status().json()["data"]["activeTargets"]
        return targets[0] if targets else {}
