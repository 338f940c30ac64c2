"""vLLM's own load generator, unmodified, against the service."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from loadtest.agreement import VLLM_BENCH
from tests.rig.server import ROOT, clean_environment
from tests.rig.service import Service, total

REQUESTS, INPUT, OUTPUT = 200, 48, 24


def test_all_requests_of_vllm_bench_serve_succeed(
    service: Service, tiny_model: Path, tmp_path: Path
) -> None:
    before = finished(service)
    result = bench(service, tiny_model, tmp_path)
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert not any(result["errors"])
    assert result["output_lens"] == [OUTPUT] * REQUESTS
    assert result["total_output_tokens"] == REQUESTS * OUTPUT
    # Text that was drawn at random may be cut into a token more or less.
    assert min(result["input_lens"]) >= INPUT / 2
    assert min(result["ttfts"]) > 0
    assert result["request_throughput"] > 0
    assert finished(service) - before == REQUESTS


def finished(service: Service) -> float:
    """Completions that ran to their full length."""
    name, samples = "tidegate_finished_sequences_total", service.metrics()
    labels = {"route": "completions", "reason": "length"}
    return total(samples, name, **labels) if any(key == name for key, _ in samples) else 0.0


def bench(service: Service, model: Path, directory: Path) -> dict[str, Any]:
    """Run it and return what it has measured."""
    options = {
        "backend": "openai",
        "base-url": service.url,
        "model": "tiny",
        "tokenizer": model,
        "dataset-name": "random",
        "random-input-len": INPUT,
        "random-output-len": OUTPUT,
        "num-prompts": REQUESTS,
        "max-concurrency": 16,
        "result-dir": directory,
        "result-filename": "result.json",
    }
    switches = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", VLLM_BENCH, *switches]
        + [f"--{name}={value}" for name, value in options.items()],
        cwd=ROOT,
        env=clean_environment(),
        timeout=240,
        check=True,
    )
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return result
