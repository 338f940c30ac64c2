"""The benchmark of front ends: whose CPU time it counts, and what it makes of its cells."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import frontend
from loadtest.errors import UsageError
from loadtest.frontend import Cell, FrontEnd, Work
from loadtest.servers import Server

CELL = Cell(
    server="a",
    work="32 streams",
    round=0,
    cpu_us=80.0,
    tokens_per_s=1000.0,
    requests_per_s=10.0,
    ttft_p50_s=0.1,
    ttft_p99_s=None,
    itl_p50_s=0.005,
    itl_p99_s=0.02,
    resident_bytes=100,
    peak_bytes=200,
    verdict="valid",
    reasons=(),
)
PARENT = """
import subprocess, sys, time
busy = "import time\\nend = time.process_time() + 1\\nwhile time.process_time() < end: pass\\n"
busy += "print('done', flush=True)\\ntime.sleep(60)"
for name in ("VLLM::EngineCore", "helper"):
    child = subprocess.Popen([sys.executable, "-c", busy, name], stdout=subprocess.PIPE)
    child.stdout.readline()
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def tree(directory: Path) -> Iterator[int]:
    """A process with two busy children, one of which calls itself an engine."""
    script = directory / "parent.py"
    script.write_text(PARENT)
    words = [sys.executable, str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_the_engine_is_no_part_of_the_front_end(tmp_path: Path) -> None:
    with tree(tmp_path) as pid:
        front = FrontEnd(Server("a", "http://127.0.0.1:1", pid))
        assert len(front.processes) == 2
        assert 1.0 <= front.cpu_s() < 1.9
        assert 0 < front.resident_bytes() <= front.peak_bytes()


def test_a_server_of_somebody_else_cannot_be_measured() -> None:
    with pytest.raises(UsageError, match="--serve"):
        FrontEnd(Server("a", "http://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("work", "units"),
    [(Work("s", 4, 10, 16, stream=True), 160), (Work("w", 4, 10, 16, stream=False), 10)],
)
def test_a_stream_is_counted_by_its_tokens(work: Work, units: int) -> None:
    assert work.units == units


def test_ratios_are_those_of_each_round() -> None:
    cells = [
        replace(CELL, server=server, round=n, cpu_us=cpu, ttft_p50_s=None)
        for n, (a, b) in enumerate([(80.0, 40.0), (100.0, 60.0), (60.0, 24.0)])
        for server, cpu in (("a", a), ("b", b))
    ]
    first, second = frontend.rows(cells)
    assert (first.medians["cpu_us"], first.ratios["cpu_us"].median) == (80.0, 1.0)
    assert (second.medians["cpu_us"], second.ratios["cpu_us"].median) == (40.0, 0.5)
    assert second.ratios["cpu_us"].interval == pytest.approx((0.4, 0.6))
    assert second.medians["ttft_p50_s"] is None


def test_the_table_has_every_load_and_server() -> None:
    cells = [
        replace(CELL, server=server, work=work)
        for server in ("a", "b")
        for work in ("32 streams", "128 whole", "probes")
    ]
    text = frontend.render(cells)
    assert [line for line in text.splitlines() if "CPU per" in line] == [
        "32 streams, CPU per token",
        "128 whole, CPU per request",
        "probes, CPU per probe",
    ]
    assert text.count("80.00 (1.000)") == 6
