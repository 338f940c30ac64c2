"""The scripted server as a process of its own, for what measures times."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.rig.server import LOOPBACK, Server, free_port
from tests.rig.sse_server import Timeline


class SseServer(Server):
    """`python -m tests.rig.sse_server` with a default script by its fields."""

    ready_path = "/health"

    def __init__(self, log: Path, **default: Any) -> None:
        port = free_port()
        command = [sys.executable, "-m", "tests.rig.sse_server", "--port", str(port)]
        super().__init__([*command, "--script", json.dumps(default)], port, log, {})
        assert self.url.startswith(f"http://{LOOPBACK}:")

    def timelines(self) -> dict[str, Timeline]:
        """The latest requests by their id."""
        found = self._probe.get(f"{self.url}/_timeline").raise_for_status().json()
        return {one["request_id"]: Timeline(**one) for one in found}
