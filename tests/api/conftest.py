"""The service in this process, for faults that have to be caused from inside."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.rig.inprocess import InProcess
from tests.rig.routes import COMPLETIONS
from tests.rig.service import adapter_settings, tiny_settings, until

BODY_TIMEOUT_S = 2.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs the engine in this process runs the engine."""
    for item in items:
        if {"inside", "embedder"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def inside(
    tiny_model: Path, tiny_lora: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcess]:
    """One for all tests that cause faults: the settings of `service`, a short body timeout."""
    settings = tiny_settings(tiny_model) | adapter_settings(tiny_lora)
    # Chunks as they come, however busy this process is.
    settings |= {"server.body_timeout_s": BODY_TIMEOUT_S, "server.coalesce_chunks": False}
    with InProcess(settings, tmp_path_factory.mktemp("inside") / "log") as running:
        yield running


@pytest.fixture
async def nothing_left(inside: InProcess) -> AsyncIterator[None]:
    """Whatever failed, nothing of it stays counted, and the next request works."""
    yield
    await until(lambda: not inside.ledger.permits)
    assert inside.metric("vllm_running_requests") == 0
    assert inside.metric("vllm_pending_requests") == 0
    assert inside.metric("vllm_kv_cache_usage_percent") == 0
    assert not inside.ledger.dispatches
    await until(lambda: inside.llm.get_num_unfinished_requests() == 0)
    answer = inside.client().post("/v1/completions", json=COMPLETIONS.body(tokens=2))
    assert answer.status_code == 200
