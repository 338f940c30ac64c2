"""A start, watched from outside: the port is open, the probes are true, a failure ends it."""

import asyncio
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import StartService
from tests.rig.server import LOOPBACK
from tests.rig.service import Service, until

STAGES = ["importing", "starting_engine", "loading", "warming"]
GENERATE = {"model": "tiny", "prompt": "hello", "max_tokens": 1}


def stage_of(answer: httpx.Response) -> str:
    message = answer.json()["error"]["message"]
    return next(stage for stage in STAGES if f"({stage})" in message)


async def open_port(service: Service, client: httpx.AsyncClient) -> None:
    async def answers() -> bool:
        try:
            return (await client.get("/livez")).status_code == 200
        except httpx.TransportError:
            return False

    while not await answers():
        assert service.process.poll() is None


async def test_the_port_is_open_while_the_model_loads(start_service: StartService) -> None:
    service = start_service(wait=False)
    seen: list[str] = []
    async with service.async_client() as client:
        await open_port(service, client)
        refused = await client.post("/v1/completions", json=GENERATE)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "starting"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert int(refused.headers["retry-after-ms"]) > 0
        assert refused.headers["x-request-id"]
        while (answer := await client.get("/readyz")).status_code == 503:
            assert answer.json()["error"]["code"] == "starting"
            assert (await client.get("/livez")).status_code == 200
            seen.append(stage_of(answer))
        assert answer.status_code == 200
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/v1/completions", json=GENERATE)).status_code == 200
    in_order = list(dict.fromkeys(seen))
    assert in_order == [stage for stage in STAGES if stage in in_order]
    assert {"importing", "loading"} <= set(in_order)
    only_the_service_listens(service)


def only_the_service_listens(service: Service) -> None:
    engine = service.engine_pids("")
    assert engine
    for pid in engine:
        listening = [c for c in psutil.Process(pid).net_connections("inet") if c.status == "LISTEN"]
        ports = {c.laddr.port for c in listening}
        assert int(service.url.rpartition(":")[2]) not in ports


@pytest.mark.parametrize(
    ("key", "value", "status", "reason"),
    [
        ("engine.max_modl_len", 512, 2, "did you mean engine.max_model_len"),
        ("engine.model", "/no/such/model", 1, "/no/such/model"),
        ("engine.max_model_len", 999_999_999, 1, "999999999"),
        # Said by the engine's own process, of which the service sees only the end.
        ("engine.kv_cache_memory_bytes", 1 << 20, 1, "ValueError: To serve at least one request"),
    ],
)
def test_what_cannot_start_ends_with_one_reason(
    start_service: StartService, key: str, value: str | int, status: int, reason: str
) -> None:
    setting = {"engine__max_model_len": 16384} | {key.replace(".", "__"): value}
    service = start_service(wait=False, config=None, env=None, **setting)
    assert service.wait(within=120) == status
    last = service.log_text().strip().splitlines()[-1]
    assert reason in last
    assert "Traceback" not in service.log_text()
    assert service.left_after(10) == []


def test_a_taken_port_is_said_at_once(start_service: StartService) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        service = start_service(wait=False, server__port=port)
        assert service.wait(within=60) == 1
    assert "cannot listen" in service.log_tail()


async def test_a_stop_while_the_model_loads_leaves_nothing(start_service: StartService) -> None:
    service = start_service(wait=False)
    await until(lambda: "starting: loading" in service.log_text(), within=120)
    assert await asyncio.to_thread(service.terminate, 30) == 0
    assert service.left_after(10) == []


def test_the_embedded_model_knows_the_capital_of_france(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    profile = Path(__file__).parents[2] / "config" / "cpu-demo.yaml"
    log = tmp_path_factory.mktemp("embedded") / "log"
    with Service({"logging.format": "json"}, log, config=profile) as service:
        answer = service.openai().chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=40,
        )
        assert "Paris" in (answer.choices[0].message.content or "")
        assert [model.id for model in service.openai().models.list()] == ["smollm2-135m-instruct"]
