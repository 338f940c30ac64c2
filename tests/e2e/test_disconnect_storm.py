"""Thousands of requests, a tenth of whose clients leave at random moments: nothing stays behind."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.rig.inprocess import InProcess
from tests.rig.raw import Connection, connect, post
from tests.rig.routes import ROUTES
from tests.rig.samples import Samples, total
from tests.rig.service import tiny_settings, until, until_metrics

pytestmark = [pytest.mark.engine, pytest.mark.slow]

REQUESTS = 5_000
CLIENTS = 64
SLOTS = 16
TOKENS = 8
LEAVE = 0.1
LONGEST_STAY_S = 0.4
"""About what a request takes, so that clients leave while it waits, starts and generates."""
GROWTH_BYTES = 30 << 20
KV_BYTES = 32 << 20
"""Used through within the first thousand: what is touched for the first time becomes resident."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # torch's libraries keep a kernel for each shape of a batch, up to 1,024 of them: 300 MiB.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8",
    "LRU_CACHE_CAPACITY": "8",
}
GAUGES = (
    "vllm_pending_requests",
    "vllm_running_requests",
    "vllm_pending_tokens",
    "vllm_kv_cache_usage_percent",
    "tidegate_demand_sequences",
)


@pytest.fixture(scope="module")
def stormy(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    settings = tiny_settings(tiny_model) | {
        "engine.max_num_seqs": SLOTS,
        "engine.kv_cache_memory_bytes": KV_BYTES,
        "logging.level": "error",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with InProcess(settings, tmp_path_factory.mktemp("stormy") / "log") as running:
            yield running


@dataclass
class Storm:
    """The clients, and what has become of their requests.

    Attributes:
        left: at which stage those that left did so.

    """

    service: InProcess
    dice: random.Random
    sent: int = 0
    answered: int = 0
    left: dict[str, int] = field(default_factory=lambda: {"waiting": 0, "reading": 0})

    async def rage(self, requests: int) -> None:
        """So many more requests, `CLIENTS` at a time."""
        end = self.sent + requests
        await asyncio.gather(*(self._client(end) for _ in range(CLIENTS)))

    async def _client(self, end: int) -> None:
        while self.sent < end:
            async with connect(self.service) as connection:
                while self.sent < end and await self._request(connection):
                    pass

    async def _request(self, connection: Connection) -> bool:
        """One request; whether the connection is still there."""
        number = self.sent
        self.sent += 1
        route = ROUTES[number % len(ROUTES)]
        stream = self.dice.random() < 0.5
        prompt = f"No. {number} " + "word " * self.dice.choice((0, 10, 100))
        await connection.send(post(route.path, route.body(prompt, TOKENS, stream=stream)))
        if self.dice.random() < LEAVE:
            await self._leave(connection, stream)
            return False
        status, headers = await connection.head()
        body = await _body(connection, headers)
        assert status == 200, body
        self.answered += 1
        return True

    async def _leave(self, connection: Connection, stream: bool) -> None:
        if stream and self.dice.random() < 0.3:
            await connection.head()
            self.left["reading"] += 1
        else:
            await asyncio.sleep(self.dice.uniform(0, LONGEST_STAY_S))
            self.left["waiting"] += 1
        await connection.close(reset=self.dice.random() < 0.5)


async def _body(connection: Connection, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await connection.reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await connection.reader.readline(), 16):
        body += await connection.reader.readexactly(size)
        await connection.reader.readline()
    await connection.reader.readline()
    return body


def memory(service: InProcess) -> tuple[int, int]:
    """Resident bytes of the service, with the clients in this process, and of the engine."""
    engine = sum(process.memory_info().rss for process in service.survivors())
    return psutil.Process().memory_info().rss, engine


async def tasks(service: InProcess) -> list[str]:
    """What runs on the server's loop."""

    async def names() -> list[str]:
        return sorted(str(task.get_coro()) for task in asyncio.all_tasks())

    return await service.on_loop(names)


def idle(samples: Samples) -> bool:
    return all(total(samples, name) == 0 for name in GAUGES)


@asynccontextmanager
async def leaving_no_task(service: InProcess) -> AsyncIterator[None]:
    before = await tasks(service)
    yield
    after = await tasks(service)
    for _ in range(100):
        if len(after) <= len(before):
            return
        await asyncio.sleep(0.1)
        after = await tasks(service)
    raise AssertionError(f"before: {before}\nafter: {after}")


def leftovers(service: InProcess) -> dict[str, int]:
    """All that is kept for a request while it lives, by what it is."""
    gate, llm = service.composition.gate, service.llm
    processor = llm.output_processor
    kept = {
        "permits": service.ledger.permits,
        "dispatches": service.ledger.dispatches,
        "granted": gate._granted,
        "seen": gate._seen,
        "calls": llm._calls,
        "held texts": llm.coalescer._held,
        "aborts": llm._aborts,
        "states": processor.request_states,
        "external ids": processor.external_req_ids,
        "parents": processor.parent_requests,
    }
    counts = {name: len(things) for name, things in kept.items()}
    counts |= {"tickets": gate.lines.count, "unfinished": service.ledger.unfinished}
    counts["waiting"] = sum(line.waiting + len(line.tickets) for line in gate.lines.all())
    counts["flows"] = sum(line.flow.waiting + line.flow.inside for line in gate.lines.all())
    return {name: count for name, count in counts.items() if count}


async def test_nothing_is_left_after_a_storm(stormy: InProcess) -> None:
    storm = Storm(stormy, random.Random(0))
    # What is made once, at the first request of each kind, is not what is looked for.
    await storm.rage(CLIENTS)
    await until_metrics(stormy, idle)
    async with leaving_no_task(stormy):
        resident = []
        for _ in range(5):
            await storm.rage(REQUESTS // 5)
            resident.append(memory(stormy))
        samples = await until_metrics(stormy, idle)
    await until(lambda: not leftovers(stormy), why=str(leftovers(stormy)))
    assert leftovers(stormy) == {}
    accepted = total(samples, "tidegate_accepted_sequences_total")
    assert accepted == total(samples, "tidegate_finished_sequences_total")
    aborted = total(samples, "tidegate_finished_sequences_total", reason="aborted")
    # Some clients leave before their request was read, some when it is answered already.
    assert 0.5 * sum(storm.left.values()) < aborted <= sum(storm.left.values())
    assert min(storm.left.values()) > 50
    assert storm.answered + sum(storm.left.values()) == storm.sent == REQUESTS + CLIENTS
    for process in zip(*resident, strict=True):
        assert process[-1] - process[0] < GROWTH_BYTES, resident
    answer = await asyncio.to_thread(
        stormy.client().post, ROUTES[0].path, json=ROUTES[0].body(tokens=2)
    )
    assert answer.status_code == 200
