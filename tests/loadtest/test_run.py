"""A whole run, against the scripted server in a process of its own."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtest.errors import UsageError
from loadtest.metrics import Slo
from loadtest.plan import Load, Shape, Spec, Tenant
from loadtest.record import Outcome
from loadtest.result import PARTIAL, Result, load
from loadtest.run import execute
from loadtest.settings import Run, Target
from loadtest.verdict import Grade
from tests.rig.server import LOOPBACK, ROOT, clean_environment, free_port
from tests.rig.sse_process import SseServer

FAST = {"ttft_s": 0.02, "itl_s": 0.002}
SHAPE = Shape("fixed:40", "fixed:5")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SseServer]:
    with SseServer(tmp_path_factory.mktemp("sse") / "log", **FAST) as server:
        yield server


def run_of(url: str, load: Load, extra: Mapping[str, Any] | None = None, **options: Any) -> Run:
    target = Target(base_url=url, timeout_s=10.0, extra=extra or {})
    options = {"warmup_s": 0.5, "spec": Spec(load=load, shape=SHAPE), **options}
    return Run(target=target, **options)


def measure(run: Run, directory: Path) -> Result:
    result, path = execute(run, directory, progress=False)
    assert not list(directory.glob(f"*{PARTIAL}"))
    assert load(path).summary == result.summary
    return result


@pytest.mark.parametrize("workers", [1, 2])
def test_an_open_loop_sends_all_at_their_times(
    server: SseServer, tmp_path: Path, workers: int
) -> None:
    spec = Spec(load=Load(rate=100, duration_s=3), shape=SHAPE, seed=workers)
    result = measure(run_of(server.url, Load(), spec=spec, workers=workers), tmp_path)
    assert len(result.records) > 200
    assert {record.outcome for record in result.records} == {Outcome.OK}
    assert [record.index for record in result.records] == list(range(len(result.records)))
    assert result.window == (0.5, 3.0)
    assert {record.output_tokens for record in result.records} == {5}
    assert result.prefix_cache_hit_rate == 0  # no two prompts were the same
    assert {record.prompt_tokens for record in result.records} == {40}


def test_nothing_is_held_back_however_slow_the_server_is(server: SseServer, tmp_path: Path) -> None:
    slow = {"script": {"ttft_s": 2.0, "itl_s": 0.0}}
    result = measure(run_of(server.url, Load(rate=100, duration_s=2), slow), tmp_path)
    lags = [record.send_lag or 0.0 for record in result.records]
    assert sorted(lags)[len(lags) // 2] < 0.05
    # Far more in flight than would be if sends waited for answers.
    waiting = result.gauges.series["vllm:num_requests_waiting"]
    assert max(count or 0.0 for count in waiting) > 80


def test_a_closed_loop_keeps_its_users_busy(server: SseServer, tmp_path: Path) -> None:
    load_ = Load("closed", concurrency=7, duration_s=2.0)
    result = measure(run_of(server.url, load_, workers=2), tmp_path)
    edges = [(r.sent, 1) for r in result.records] + [(r.ended, -1) for r in result.records]
    depth = top = 0
    for _, step in sorted(edges, key=lambda edge: (edge[0] or 0.0, edge[1])):
        depth += step
        top = max(top, depth)
    assert top == 7
    assert result.window == (0.5, 2.0)
    assert len({record.index for record in result.records}) == len(result.records)
    # Each user: 0.028 s a request at the least.
    assert 0.5 * 7 / 0.028 < result.summary["requests_per_s"] < 7 / 0.028


def test_a_closed_loop_of_so_many_requests(server: SseServer, tmp_path: Path) -> None:
    load_ = Load("closed", concurrency=5, requests=123)
    result = measure(run_of(server.url, load_, warmup_s=0.0), tmp_path)
    assert len(result.records) == 123


def test_tenants_come_with_their_keys_and_priorities(server: SseServer, tmp_path: Path) -> None:
    tenants = (Tenant("gold", 1.0, "k1", -1), Tenant("free", 3.0))
    spec = Spec(load=Load(rate=100, duration_s=2), shape=SHAPE, tenants=tenants)
    summary = measure(run_of(server.url, Load(), spec=spec), tmp_path).summary["tenants"]
    assert summary["gold"]["offered"] * 2 < summary["free"]["offered"]
    assert summary["gold"]["outcomes"]["ok"] == summary["gold"]["offered"] > 0


def test_users_of_a_tenant_go_on_beside_the_load(server: SseServer, tmp_path: Path) -> None:
    tenants = (Tenant("crowd"), Tenant("one", users=1))
    spec = Spec(load=Load(rate=100, duration_s=3), shape=SHAPE, tenants=tenants, seed=77)
    result = measure(run_of(server.url, Load(), spec=spec, workers=2), tmp_path)
    own = [record for record in result.records if record.tenant == "one"]
    assert len(own) > 20
    assert all(a.ended <= b.sent for a, b in pairwise(own) if a.ended and b.sent)
    assert result.summary["tenants"]["crowd"]["offered"] > 200
    assert max(record.intended for record in own) < 3.0


def test_probes_are_asked_while_the_load_is_on(server: SseServer, tmp_path: Path) -> None:
    run = run_of(server.url, Load(rate=20, duration_s=3))
    target = dataclasses.replace(run.target, probes=("/health", "/nowhere"))
    found = measure(dataclasses.replace(run, target=target), tmp_path).probes
    assert found["/health"]["failed"] == 0
    assert found["/nowhere"]["failed"] == found["/nowhere"]["sent"] >= 5
    assert 0 < found["/health"]["p50"] <= found["/health"]["p99"] < 1


def test_refusals_and_late_answers_are_no_goodput(server: SseServer, tmp_path: Path) -> None:
    slow = {"script": {"ttft_s": 0.3, "itl_s": 0.0}}
    run = run_of(server.url, Load(rate=50, duration_s=2), slow, slo=Slo({"ttft": 0.25}))
    late = measure(run, tmp_path)
    assert late.summary["goodput"]["share_of_offered"] == 0
    assert late.summary["requests_per_s"] > 20
    refused = dataclasses.replace(
        run, target=dataclasses.replace(run.target, extra={"script": {"play": "refuse"}})
    )
    with pytest.raises(UsageError, match="429"):  # the two requests that measure prompts
        execute(refused, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": Target(base_url=f"http://{LOOPBACK}:1")}, "127.0.0.1:1/v1/models"),
        ({"target": Target(base_url="no url")}, "no url"),
        ({"warmup_s": 60.0}, "--warmup 60 leaves nothing"),
        ({"workers": 0}, "--workers"),
        ({"spec": Spec(load=Load(rate=0.0))}, "rate"),
        ({"spec": Spec(load=Load("closed", concurrency=1, requests=5)), "workers": 2}, "shared"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_no_file(
    tmp_path: Path, server: SseServer, change: dict[str, Any], reason: str
) -> None:
    run = dataclasses.replace(run_of(server.url, Load(rate=10, duration_s=2)), **change)
    with pytest.raises(UsageError, match=reason) as raised:
        execute(run, tmp_path, progress=False)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_an_unknown_model_is_named_with_the_known_ones(server: SseServer, tmp_path: Path) -> None:
    target = Target(base_url=f"{server.url}/v1/", model="other")
    run = Run(target=target, spec=Spec(load=Load(rate=10, duration_s=2)), warmup_s=0.5)
    with pytest.raises(UsageError, match="no model 'other' there, only scripted"):
        execute(run, tmp_path, progress=False)


def test_first_tokens_of_whole_answers_are_not_judged(server: SseServer, tmp_path: Path) -> None:
    target = Target(base_url=server.url, stream=False)
    run = run_of(server.url, Load(rate=10, duration_s=2))
    run = dataclasses.replace(run, target=target, slo=Slo({"ttft": 1.0}))
    with pytest.raises(UsageError, match="an SLO on ttft needs streamed answers"):
        execute(run, tmp_path, progress=False)
    found = measure(dataclasses.replace(run, slo=Slo({"e2e": 1.0})), tmp_path)
    assert found.summary["goodput"]["share_of_offered"] == 1
    assert found.summary["latency_s"]["ttft"]["p50"] is None


def test_a_server_that_dies_makes_the_run_invalid(tmp_path: Path) -> None:
    with SseServer(tmp_path / "log", **FAST) as server:
        run = run_of(server.url, Load(rate=50, duration_s=4))
        with in_thread(run, tmp_path / "out"):
            until(lambda: _lines(tmp_path / "out") > 60)
            server.process.kill()
    (path,) = (tmp_path / "out").glob("*.json")
    found = load(path)
    assert found.verdict.grade is Grade.INVALID
    assert any("restarted or went away" in reason for reason in found.verdict.reasons)
    outcomes = found.summary["outcomes"]
    assert outcomes["ok"] > 20
    assert outcomes["connection"] > 20


@contextmanager
def in_thread(run: Run, directory: Path) -> Iterator[None]:
    """The run goes on until its own end, which the end of the block waits for."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(execute, run, directory, progress=False)
        yield
        running.result()


def until(condition: Callable[[], object], within: float = 30.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


SCRIPT = """
import sys
from pathlib import Path
from loadtest.plan import Load, Shape, Spec
from loadtest.run import execute
from loadtest.settings import Run, Target

if __name__ == "__main__":
    spec = Spec(load=Load(rate=100, duration_s=60), shape=Shape("fixed:40", "fixed:5"))
    execute(Run(target=Target(sys.argv[1]), spec=spec, warmup_s=0.5), Path(sys.argv[2]))
"""


def started(server: SseServer, directory: Path) -> "subprocess.Popen[bytes]":
    """A run in a process group of its own, that has sent a second's worth."""
    (directory / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        # Tests that run in the background have interrupts ignored, and children inherit that.
        [
            *("env", "--default-signal=INT", sys.executable, str(directory / "script.py")),
            *(server.url, str(directory / "out")),
        ],
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    until(lambda: _lines(directory / "out") > 100 or process.poll() is not None)
    return process


def _lines(directory: Path) -> int:
    return sum(path.read_text().count("\n") for path in directory.glob(f"*{PARTIAL}"))


def test_ctrl_c_leaves_a_report_of_what_was_sent(server: SseServer, tmp_path: Path) -> None:
    process = started(server, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(15) == 0
    (path,) = (tmp_path / "out").iterdir()
    found = load(path)
    assert found.harness.interrupted
    assert found.verdict.grade is Grade.INVALID
    assert found.window[1] < 30
    assert found.summary["outcomes"]["ok"] > 50
    assert not found.harness.worker_lost


def test_a_killed_run_leaves_its_records_and_no_process(server: SseServer, tmp_path: Path) -> None:
    process = started(server, tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.wait()
    (path,) = (tmp_path / "out").iterdir()
    assert len(load(path).records) >= 100
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_worker_that_dies_makes_the_run_invalid(server: SseServer, tmp_path: Path) -> None:
    run = run_of(server.url, Load(rate=50, duration_s=3), workers=2)

    with in_thread(run, tmp_path):
        until(lambda: _lines(tmp_path) > 20)
        _workers()[0].kill()
    (path,) = tmp_path.iterdir()
    assert "a worker of the harness died" in str(load(path).verdict.reasons)


def _workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_port_without_a_server_is_named(tmp_path: Path) -> None:
    run = run_of(f"http://{LOOPBACK}:{free_port()}", Load(rate=10, duration_s=2))
    with pytest.raises(UsageError, match="Connection refused"):
        execute(run, tmp_path, progress=False)


def test_what_does_not_end_is_given_up_after_the_drain(server: SseServer, tmp_path: Path) -> None:
    slow = {"script": {"ttft_s": 3.5, "itl_s": 0.0}}
    run = run_of(server.url, Load(rate=50, duration_s=2), slow, drain_s=1.0)
    found = measure(run, tmp_path)
    assert found.summary["outcomes"]["cancelled"] == found.summary["offered"] > 50
    assert max(record.ended or 0.0 for record in found.records) < 5.0
    assert any("had not ended 1 s after" in note for note in found.notes)
    assert not found.harness.interrupted


def test_thousands_that_are_given_up_at_once_are_all_told(
    server: SseServer, tmp_path: Path
) -> None:
    slow = {"script": {"ttft_s": 4.5, "itl_s": 0.0}}
    run = run_of(server.url, Load(rate=1000, duration_s=3), slow, drain_s=0.0)
    found = measure(run, tmp_path)
    assert not found.harness.worker_lost
    assert found.summary["outcomes"]["cancelled"] == found.summary["offered"] > 1500
