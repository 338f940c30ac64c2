"""Whatever priority a client asks for, the engine itself sees one: the order is decided before."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.inprocess import InProcess
from tests.rig.routes import CHAT, COMPLETIONS, Route


@pytest.fixture
def priorities(inside: InProcess) -> Iterator[list[int]]:
    """Of each request that the engine is sent."""
    seen: list[int] = []
    core = inside.llm.engine_core
    original = core.add_request_async

    async def add_request_async(request: Any) -> None:
        seen.append(request.priority)
        await original(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "add_request_async", add_request_async)
        yield seen


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
@pytest.mark.parametrize("given", [-7, 7])
def test_the_engine_always_gets_0(
    inside: InProcess, priorities: list[int], route: Route, given: int
) -> None:
    client = inside.client()
    body = route.body(tokens=1)
    by_body = client.post(route.path, json=body | {"priority": given})
    by_header = client.post(route.path, json=body, headers={"x-vllm-priority": str(given)})
    assert (by_body.status_code, by_header.status_code) == (200, 200)
    assert priorities == [0, 0]
