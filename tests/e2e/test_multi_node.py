"""One engine on two nodes, here two processes with a tensor-parallel rank each."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.rig.server import ROOT, clean_environment
from tests.rig.service import Service, Setting, free_port, tiny_settings, until

ENVIRONMENT = {
    # What the nodes tell one another to connect to, and the interface of gloo, the CPU's backend.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    # By default every rank's threads are bound to the same core of this machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
# Five processes import vllm before the first token.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROMPT = "The capital of France is Paris. What is the largest planet?"


def node(model: Path, rank: int, port: int) -> dict[str, Setting]:
    return tiny_settings(model) | {
        "engine.distributed_executor_backend": "mp",
        "engine.tensor_parallel_size": 2,
        "engine.nnodes": 2,
        "engine.node_rank": rank,
        "engine.master_addr": "127.0.0.1",
        "engine.master_port": port,
    }


def worker_of(settings: Mapping[str, Setting], log: Path) -> Service:
    """`python -m app worker`, which has no port and is never ready."""
    worker = Service(settings, log, env=ENVIRONMENT)
    worker.command = [*worker.command[:3], "worker", *worker.command[3:]]
    return worker


@pytest.fixture(scope="module")
def nodes(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Service]]:
    """The node that serves, and the other."""
    port, logs = free_port(), tmp_path_factory.mktemp("nodes")
    head = Service(node(tiny_model, 0, port), logs / "head", env=ENVIRONMENT)
    worker = worker_of(node(tiny_model, 1, port), logs / "worker")
    try:
        worker.start()
        head.start()
        head.wait_ready(within=240)
        yield head, worker
    finally:
        head.close()
        worker.close()


def prompt_logprobs(server: Service) -> list[float]:
    """What the model thinks of each token of the prompt but the first; the last is its own."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 1}
    response = server.client().post("/v1/completions", json=body).raise_for_status()
    values: list[float] = response.json()["choices"][0]["logprobs"]["token_logprobs"]
    return values[1:-1]


def test_two_nodes_compute_what_one_does(nodes: tuple[Service, Service], service: Service) -> None:
    head, worker = nodes
    assert len(head.engine_pids("Worker")) == len(worker.engine_pids("Worker")) == 1
    assert prompt_logprobs(head) == pytest.approx(prompt_logprobs(service), abs=1e-3)
    assert len(prompt_logprobs(head)) > 10


async def test_a_worker_ends_with_its_head_node(nodes: tuple[Service, Service]) -> None:
    head, worker = nodes
    assert head.terminate() == 0
    assert worker.wait(within=30) == 1
    assert "the head node is gone" in worker.log_text()
    for server in (head, worker):
        await nothing_is_left(server)


async def nothing_is_left(server: Service) -> None:
    """Python's resource tracker outlives the process that it is for by a moment."""
    await until(lambda: server.survivors() == [], within=20, why=f"left: {server.survivors()}")


async def test_a_worker_without_a_head_node_ends_on_sigterm(
    tiny_model: Path, tmp_path: Path
) -> None:
    worker = worker_of(node(tiny_model, 1, free_port()), tmp_path / "log")
    try:
        worker.start()
        await until(lambda: bool(worker.engine_pids("Worker")), within=120, why=worker.log_tail())
        assert worker.terminate() == 0
        await nothing_is_left(worker)
    finally:
        worker.close()


def test_settings_that_make_no_worker_are_refused_in_a_line(tiny_model: Path) -> None:
    port = free_port()
    uneven = node(tiny_model, 1, port) | {"engine.tensor_parallel_size": 1}
    with refused(uneven) as first, refused(node(tiny_model, 0, port)) as second:
        status, line = ending(first)
        assert (status, line.count("--nnodes 2` must evenly divide")) == (1, 1)
        status, line = ending(second)
        assert status == 2
        assert line == "tidegate: engine.node_rank: must be above 0: rank 0 is the node that serves"


def refused(settings: Mapping[str, Setting]) -> subprocess.Popen[str]:
    """A worker that does not start."""
    options = [f"--{name}={value}" for name, value in settings.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "app", "worker", *options],
        cwd=ROOT,
        env=clean_environment() | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ending(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status and the last line that it wrote."""
    try:
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "Traceback" not in output
    return process.returncode, output.splitlines()[-1]
