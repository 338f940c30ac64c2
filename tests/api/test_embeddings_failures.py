"""Embeddings fail and end as the generating routes do; they reach the engine by `encode`."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.failures import SECRET, assert_refused
from tests.rig.faults import dead, failing
from tests.rig.inprocess import InProcess
from tests.rig.raw import connect, post
from tests.rig.routes import COMPLETIONS, Json
from tests.rig.service import tiny_settings, until

PATH = "/v1/embeddings"
MANY = 1500
"""Inputs that take the engine many steps."""
SLOTS = 4


@pytest.fixture(scope="module")
def embedder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """The tiny model, which gives its last hidden state."""
    settings = tiny_settings(tiny_model) | {"engine.runner": "pooling", "engine.convert": "embed"}
    with InProcess(settings, tmp_path_factory.mktemp("embedder") / "log") as running:
        yield running


@pytest.fixture(autouse=True)
async def _nothing_left(embedder: InProcess) -> AsyncIterator[None]:
    yield
    await until(lambda: not embedder.ledger.permits)
    await until(lambda: embedder.llm.get_num_unfinished_requests() == 0)
    assert embedder.metric("vllm_running_requests") == 0
    assert embedder.metric("vllm_pending_requests") == 0
    assert len(embed(embedder, "a").json()["data"]) == 1


def embed(embedder: InProcess, text: Any) -> Any:
    return embedder.client().post(PATH, json={"model": "tiny", "input": text})


def many() -> Json:
    return {"model": "tiny", "input": [[7 + i % 900] * 400 for i in range(MANY)]}


def test_a_text_that_is_too_long_has_its_true_status(embedder: InProcess) -> None:
    for text in ("word " * 2000, ["a", "word " * 2000]):
        assert_refused(embed(embedder, text), COMPLETIONS, 400, "context_length_exceeded")


@pytest.mark.parametrize("text", ["a", ["a", "b", "c"]], ids=["one", "three"])
def test_a_failure_is_a_500(
    embedder: InProcess, text: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with failing(embedder.llm, "encode", RuntimeError(SECRET), after=0):
        assert_refused(embed(embedder, text), COMPLETIONS, 500, "internal_error")
    logged = [record for record in caplog.records if record.name.startswith("app.")]
    assert [record.message for record in logged] == ["a request failed"]


def test_a_dead_engine_is_a_500_of_its_own(embedder: InProcess) -> None:
    with failing(embedder.llm, "encode", dead(), after=0):
        assert_refused(embed(embedder, ["a", "b"]), COMPLETIONS, 500, "engine_dead")


async def test_a_client_that_leaves_frees_all_its_slots(embedder: InProcess) -> None:
    async with connect(embedder) as connection:
        await connection.send(post(PATH, many()))
        # A window of it counts, which the engine takes in one step and has done in the next.
        await until(lambda: embedder.ledger.unfinished == SLOTS, within=60)
        await until(lambda: any(permit.dispatched for permit in embedder.ledger.permits))
        await connection.close()
        await until(lambda: not embedder.ledger.permits)
    aborted = embedder.metric("tidegate_finished_sequences_total", reason="aborted")
    assert aborted == SLOTS


def test_a_model_that_only_embeds_does_not_generate(embedder: InProcess) -> None:
    response = embedder.client().post(COMPLETIONS.path, json=COMPLETIONS.body())
    assert_refused(response, COMPLETIONS, 400, "invalid_value")
