"""What a service tells of its engine's steps, and that a calibration can be made of it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from loadtest.simulator import calibrate
from loadtest.simulator.records import Chunks, load
from tests.conftest import StartService
from tests.rig.service import Service, free_port

ASKED = [(40, 30), (150, 12), (7, 25), (60, 1), (33, 40)]
"""Tokens of each prompt and answer; more than there are slots, and one prompt takes three steps."""


@pytest.fixture(scope="module")
def recorded(start_module_service: StartService) -> Service:
    return start_module_service(
        server__ops_port=free_port(),
        metrics__step_records=100_000,
        engine__max_num_batched_tokens=64,
        engine__enable_prefix_caching=False,
    )


def ask(client: httpx.Client, prompt: int, output: int) -> None:
    body = {
        "model": "tiny",
        "prompt": list(range(20, 20 + prompt)),
        "max_tokens": output,
        "ignore_eos": True,
        "stream": output % 2 == 0,
    }
    assert client.post("/v1/completions", json=body).status_code == 200


@pytest.fixture(scope="module")
def steps(recorded: Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    client = recorded.client()
    with ThreadPoolExecutor(len(ASKED)) as clients:
        list(clients.map(lambda asked: ask(client, *asked), ASKED))
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    path.write_bytes(httpx.get(f"{recorded.ops_url}/admin/steps").raise_for_status().content)
    return path


def test_every_token_is_in_a_step(steps: Path) -> None:
    head, (found,) = load(steps)
    assert head["model"] == "tiny"
    assert (head["engine"]["max_num_seqs"], head["engine"]["max_num_batched_tokens"]) == (4, 64)
    assert head["engine"]["kv_blocks"] > 0
    own = found[next(i for i, step in enumerate(found) if step.prefill > 1) :]  # the warm-up's
    assert sum(step.prefill for step in own) == sum(prompt for prompt, _ in ASKED)
    assert sum(step.decodes + len(step.prompts) for step in own) == sum(n for _, n in ASKED)
    contexts = sum(prompt + made for prompt, output in ASKED for made in range(output - 1))
    assert sum(step.context or 0 for step in own) == contexts
    chunks = Chunks()
    works = [work for step in own if (work := chunks.work(step)) is not None]
    assert sum(work.attention for work in works) == sum(prompt * prompt for prompt, _ in ASKED)
    assert max(step.decodes for step in own) <= 4


def test_it_can_be_calibrated_from(steps: Path) -> None:
    found = calibrate.of_records(steps, seed=0)
    assert found.fit.terms["step"].value + found.fit.terms["decode"].value > 0
    assert found.box.most.prefill <= 64


def test_the_log_does_not_tell_each_step(recorded: Service, steps: Path) -> None:
    lines = [json.loads(line) for line in recorded.log.read_text().splitlines() if line[:1] == "{"]
    assert lines
    assert not [line for line in lines if "Iteration(" in line["message"]]
