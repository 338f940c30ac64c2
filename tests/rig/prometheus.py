"""Debian's own Prometheus, scraping servers."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import yaml

from tests.rig.debian import program
from tests.rig.server import LOOPBACK, Server, free_port

Labels: TypeAlias = frozenset[tuple[str, str]]

TARGET_LABELS = frozenset({"__name__", "instance", "job"})
"""Added by Prometheus itself."""


@dataclass(frozen=True)
class Target:
    """Who is scraped, `http://HOST:PORT`, and the labels that the samples get."""

    url: str
    labels: Mapping[str, str] = field(default_factory=dict)


class Prometheus(Server):
    """With a configuration (`every_second`); its first sample comes some six seconds after the
    start.
    """

    ready_path = "/-/ready"

    def __init__(self, config: Mapping[str, Any], directory: Path) -> None:
        port, file = free_port(), directory / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        command = [
            program("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ]
        super().__init__(command, port, directory / "prometheus.log", {})

    def query(self, expression: str) -> dict[Labels, float]:
        """An instant vector, without the labels that every sample of the target has."""
        data = self._data("query", query=expression)
        if data["resultType"] != "vector":
            raise AssertionError(f"{expression} gives a {data['resultType']}")
        return {
            frozenset((k, v) for k, v in sample["metric"].items() if k not in TARGET_LABELS): float(
                sample["value"][1]
            )
            for sample in data["result"]
        }

    def named(self, selector: str) -> set[str]:
        """The names of the series that a selector finds."""
        return {
            sample["metric"]["__name__"] for sample in self._data("query", query=selector)["result"]
        }

    def over(self, expression: str, start: float, end: float) -> list[tuple[float, float]]:
        """One series by the second, Unix times; no sample where there was none."""
        data = self._data("query_range", query=expression, start=start, end=end, step=1)
        found = data["result"]
        return [(float(at), float(value)) for at, value in found[0]["values"]] if found else []

    def target(self) -> dict[str, str]:
        """What Prometheus says of its first target, once it has one: `health`, `lastError`, …"""
        targets: list[dict[str, str]] = self._data("targets")["activeTargets"]
        return targets[0] if targets else {}

    def firing(self) -> list[dict[str, Any]]:
        """The alerts that fire: `labels`, `annotations`, `value`, …"""
        alerts: list[dict[str, Any]] = self._data("alerts")["alerts"]
        return [alert for alert in alerts if alert["state"] == "firing"]

    def rules(self) -> dict[str, dict[str, Any]]:
        """By name: `health` (`unknown` before the first evaluation), `lastError`, …"""
        groups: list[dict[str, Any]] = self._data("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def _data(self, kind: str, **parameters: str | float) -> Any:
        answer: httpx.Response = self._probe.get(f"{self.url}/api/v1/{kind}", params=parameters)
        return answer.raise_for_status().json()["data"]


def every_second(scraped: Server | Sequence[Target], rules: Sequence[Path] = ()) -> dict[str, Any]:
    """Scrapes one server or several, and evaluates files of rules, each second."""
    targets = [Target(scraped.ops_url)] if isinstance(scraped, Server) else scraped
    groups = [
        {"targets": [target.url.removeprefix("http://")], "labels": dict(target.labels)}
        for target in targets
    ]
    every = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "1s")
    return {
        "global": every,
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "tidegate", "static_configs": groups}],
    }


def promtool(*arguments: str | Path, text: str | None = None) -> tuple[int, str]:
    """Its status and what it says; `text` is its input."""
    ran = subprocess.run(
        [program("promtool", "prometheus"), *map(str, arguments)],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    return ran.returncode, ran.stdout
