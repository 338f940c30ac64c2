"""A pod's life, with a small server in the service's place and a list in the API server's."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hpa.pod import Pod
from tests.e2e.hpa.probe import Probe
from tests.rig.server import LOOPBACK, Server, free_port

PROGRAM = """
import http.server, signal, sys, time
port, on_term = int(sys.argv[1]), sys.argv[2]
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
def ended(*_):
    print(f"term {time.time()}", flush=True)
    if on_term == "ends":
        sys.exit(0)
signal.signal(signal.SIGTERM, ended)
if on_term == "crashes":
    sys.exit(3)
http.server.HTTPServer(("127.0.0.1", port), Ready).serve_forever()
"""


class Small(Server):
    """In the place of a container."""

    address, name = LOOPBACK, "small"

    def __init__(self, on_term: str, directory: Path) -> None:
        port = free_port()
        command = [sys.executable, "-c", PROGRAM, str(port), on_term]
        super().__init__(command, port, directory / "log", {})
        self.spec = {"image": "small"}
        self._probe_spec = Probe("/readyz", port, 0.05, 1.0, 100, 1)

    def probe(self, kind: str) -> Probe:
        return self._probe_spec


class Told:
    """What the API server was told, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def merge(self, path: str, patch: dict[str, Any]) -> None:
        status = patch["status"]
        ready = {c["type"]: c["status"] for c in status["conditions"]}["Ready"]
        self.said.append(f"{status['phase']} {ready}")

    async def remove(self, path: str) -> None:
        self.said.append(f"removed {path}")


def a_pod(on_term: str, directory: Path, *, hook: dict[str, Any], grace: int = 30) -> Pod:
    manifest = {
        "metadata": {"namespace": "llm", "name": "p"},
        "spec": {"terminationGracePeriodSeconds": grace},
    }
    api: Any = Told()
    container: Any = Small(on_term, directory)
    return Pod(api, manifest, container, hook)


async def deleted_when_ready(pod: Pod) -> list[str]:
    task = asyncio.create_task(pod.run(asyncio.Lock()))
    async with asyncio.timeout(30):
        while pod.life.ready is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        pod.deleted.set()
        await task
    api: Any = pod._api
    return list(api.said)


REMOVED = "removed /api/v1/namespaces/llm/pods/p"


async def test_a_pod_is_ready_then_told_to_end_after_its_hook(tmp_path: Path) -> None:
    pod = a_pod("ends", tmp_path, hook={"sleep": {"seconds": 0.5}})
    assert await deleted_when_ready(pod) == ["Running False", "Running True", REMOVED]
    assert (pod.life.exit_status, pod.life.killed, pod.life.fault) == (0, False, None)
    told_at = float((tmp_path / "log").read_text().split()[-1])
    assert pod.life.deleted is not None
    assert told_at - pod.life.deleted >= 0.5


async def test_a_pod_that_does_not_end_is_killed(tmp_path: Path) -> None:
    pod = a_pod("stays", tmp_path, hook={}, grace=1)
    assert (await deleted_when_ready(pod))[-1] == REMOVED
    assert pod.life.killed
    assert pod.container.survivors() == []


async def test_a_process_that_ends_by_itself_is_a_fault(tmp_path: Path) -> None:
    pod = a_pod("crashes", tmp_path, hook={})
    async with asyncio.timeout(30):
        await pod.run(asyncio.Lock())
    assert pod.life.fault == "Fault: ended by itself with status 3"


@pytest.mark.parametrize("deleted_first", [True, False])
async def test_a_pod_waits_for_its_turn_unless_it_is_deleted(
    tmp_path: Path, deleted_first: bool
) -> None:
    pod, starting = a_pod("ends", tmp_path, hook={}), asyncio.Lock()
    await starting.acquire()
    task = asyncio.create_task(pod.run(starting))
    await asyncio.sleep(0.1)
    assert pod.life.started is None
    if not deleted_first:
        starting.release()
        async with asyncio.timeout(30):
            while pod.life.ready is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    pod.deleted.set()
    async with asyncio.timeout(30):
        await task
    assert (pod.life.started is None) is deleted_first
