"""Who is taken in, who waits and who is refused: the real engine, over real sockets."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request

from app.admission.lengths import REMEMBERED
from app.engine.protocol import Call, Channel, Document, Stream
from app.permit import current_permit
from app.workload import Capacity
from tests.conftest import StartService
from tests.rig import streams
from tests.rig.keys import ENTRY, OTHER
from tests.rig.routes import COMPLETIONS
from tests.rig.scripted import ScriptedEngine, scripted
from tests.rig.service import (
    Held,
    Samples,
    Service,
    free_port,
    hold,
    total,
    until,
    until_metrics,
)

SLOTS = 2
MAX_PENDING = 4
BOUND = SLOTS + MAX_PENDING
LOOKAHEAD = 2
QUEUE_TIMEOUT_S = 5.0
LONG = 8000
"""Tokens: more than half a minute, unless the client leaves."""
PROMPT_OF_ALL = [f"No. {number}" for number in range(BOUND)]
"""One request that fills the service; its first prompts have started, so it is never timed out."""


@pytest.fixture(scope="module")
def small(start_module_service: StartService) -> Service:
    return start_module_service(
        engine__max_num_seqs=SLOTS,
        engine__max_model_len=8192,
        admission__max_pending=MAX_PENDING,
        admission__queue_timeout_s=QUEUE_TIMEOUT_S,
    )


@pytest.fixture
async def tight(small: Service) -> AsyncIterator[Service]:
    """Idle before the test and after it."""
    await until_metrics(small, idle)
    yield small
    await until_metrics(small, idle)


@pytest.fixture
async def hopeful(tight: Service) -> Service:
    """It expects of every sequence that it ends soon, and so lets others wait for it."""
    await teach(tight, short=True)
    return tight


async def teach(service: Service, *, short: bool) -> None:
    """Make the service forget all lengths but those of sequences that end as told.

    Args:
        service: whose memory is filled.
        short: they ended after a token, by themselves; otherwise they ran to their limit.

    """
    ending: dict[str, Any] = {
        "logit_bias": {"100": 100},
        "stop_token_ids": [100],
        "ignore_eos": False,
    }
    asked = COMPLETIONS.body(tokens=2, **(ending if short else {})) | {"prompt": PROMPT_OF_ALL}
    async with service.async_client() as client:
        for _ in range(-(-REMEMBERED // BOUND)):
            answer = await client.post(COMPLETIONS.path, json=asked)
            reasons = {choice["finish_reason"] for choice in answer.json()["choices"]}
            assert reasons == {"stop" if short else "length"}


def value(samples: Samples, name: str, **labels: str) -> float:
    """As `total`, but a series that nothing has been counted in yet is 0."""
    try:
        return total(samples, name, **labels)
    except KeyError:
        return 0.0


def accepted(samples: Samples) -> float:
    return value(samples, "tidegate_accepted_sequences_total")


def finished(samples: Samples, **labels: str) -> float:
    return value(samples, "tidegate_finished_sequences_total", **labels)


def rejected(samples: Samples, reason: str) -> float:
    return value(samples, "tidegate_rejected_requests_total", reason=reason)


def pending(samples: Samples) -> float:
    return total(samples, "vllm_pending_requests")


def running(samples: Samples) -> float:
    return total(samples, "vllm_running_requests")


def demand(samples: Samples) -> float:
    return total(samples, "tidegate_demand_sequences")


def engine_waiting(samples: Samples) -> float:
    return total(samples, "vllm:num_requests_waiting")


def idle(samples: Samples) -> bool:
    """By every gauge but the demand, which remembers refusals."""
    gauges = (pending(samples), running(samples), total(samples, "vllm_pending_tokens"))
    return not any((*gauges, total(samples, "vllm_kv_cache_usage_percent")))


async def scrape(service: Service) -> Samples:
    return await asyncio.to_thread(service.metrics)


async def until_pending(service: Service, count: int) -> Samples:
    return await until_metrics(service, lambda samples: pending(samples) == count)


def body(tokens: int = 1, **more: Any) -> dict[str, Any]:
    return COMPLETIONS.body(tokens=tokens) | more


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert document.keys() == {"error"}
    assert document["error"].keys() == {"message", "type", "param", "code"}
    error: dict[str, Any] = document["error"]
    return error


def assert_retry_advice(headers: Mapping[str, str]) -> None:
    seconds, milliseconds = int(headers["retry-after"]), int(headers["retry-after-ms"])
    assert 1 <= seconds <= 60
    assert 1000 <= milliseconds <= 60_000
    assert seconds - 1 < milliseconds / 1000 <= seconds


def assert_refused(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    assert error_of(response)["code"] == code
    assert_retry_advice(response.headers)


def response_of(stream: streams.Stream) -> httpx.Response:
    """What was answered in place of a stream."""
    assert stream.error is None
    assert stream.status is not None
    headers = [(k, v) for k, v in stream.headers.items() if k != "content-encoding"]
    return httpx.Response(stream.status, headers=headers, text=stream.body)


@asynccontextmanager
async def full(service: Service) -> AsyncIterator[Held]:
    """All of the service is taken by one request."""
    async with hold(service, 1, prompt=PROMPT_OF_ALL, max_tokens=LONG) as held:
        await until_metrics(service, lambda s: (pending(s), running(s)) == (MAX_PENDING, SLOTS))
        yield held
        held.close()


# -- the bound


async def test_of_twenty_at_once_six_are_accepted(hopeful: Service) -> None:
    before = await scrape(hopeful)
    async with hold(hopeful, 20, started=SLOTS, max_tokens=LONG) as held:
        await until(lambda: sum(stream.ended for stream in held) >= 20 - BOUND)
        after = await until_metrics(hopeful, lambda s: running(s) == SLOTS)
        assert pending(after) == MAX_PENDING
        refused = [stream for stream in held if stream.ended]
        assert len(refused) == 20 - BOUND
        for stream in refused:
            assert_refused(response_of(stream), 429, "queue_full")
        advice = {stream.headers["retry-after-ms"] for stream in refused}
        assert len(advice) > 1, "clients that were refused together must not come back together"
        assert accepted(after) - accepted(before) == BOUND
        assert rejected(after, "queue_full") - rejected(before, "queue_full") == 20 - BOUND
        assert 20 <= demand(after) <= 20 + demand(before)
        assert sum(stream.started for stream in held) == SLOTS
        held.close()


class HoldingEngine(ScriptedEngine):
    """Answers nothing before it is released."""

    capacity = Capacity(slots=SLOTS, step_tokens=1024)

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    async def run(
        self, call: Call, request: Request, channel: Channel | None = None
    ) -> Document | Stream:
        permit = current_permit.get()
        assert permit is not None
        await asyncio.to_thread(self.release.wait, 30)
        permit.output()
        return Document(b"{}")


async def test_the_status_of_a_refusal_can_be_503() -> None:
    engine = HoldingEngine()
    settings = ("--admission.reject_status=503", f"--admission.max_pending={MAX_PENDING}")
    with scripted(*settings, engine=engine) as running_one:
        async with httpx.AsyncClient(base_url=running_one.url, timeout=60) as client:
            posts = (client.post(COMPLETIONS.path, json={"model": "x"}) for _ in range(20))
            tasks = [asyncio.create_task(post) for post in posts]
            try:
                await until(lambda: sum(task.done() for task in tasks) >= 20 - BOUND)
            finally:
                engine.release.set()
            answers = await asyncio.gather(*tasks)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == 20 - BOUND
    for answer in refused:
        assert_refused(answer, 503, "queue_full")


# -- what a request costs


async def test_a_request_is_accepted_or_refused_as_a_whole(tight: Service) -> None:
    whole = body(prompt=["a", "b", "c"], n=2, temperature=1)
    async with tight.async_client() as client:
        before = await scrape(tight)
        answer = await client.post(COMPLETIONS.path, json=whole)
        assert answer.status_code == 200
        assert [choice["index"] for choice in answer.json()["choices"]] == list(range(6))
        between = await scrape(tight)
        assert accepted(between) - accepted(before) == 6
        async with hold(tight, 1, max_tokens=LONG) as held:
            assert_refused(await client.post(COMPLETIONS.path, json=whole), 429, "queue_full")
            after = await scrape(tight)
            assert accepted(after) - accepted(between) == 1
            assert demand(after) >= 7
            held.close()


async def test_the_cost_is_decided_before_the_prompt_is_read(tight: Service) -> None:
    too_long = body(prompt=["word " * 20_000] * 2)
    async with tight.async_client() as client:
        answer = await client.post(COMPLETIONS.path, json=too_long)
        assert error_of(answer)["code"] == "context_length_exceeded"
        async with full(tight):
            answer = await client.post(COMPLETIONS.path, json=too_long)
            assert_refused(answer, 429, "queue_full")


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        pytest.param({"prompt": ["a"] * 129}, 128, id="more than one request may"),
        pytest.param({"prompt": ["a"] * 43, "n": 3}, 128, id="more than one request may, by n"),
        pytest.param({"prompt": ["a"] * (BOUND + 1)}, BOUND, id="more than the server holds"),
        pytest.param({"n": BOUND + 1}, BOUND, id="more than the server holds, by n"),
    ],
)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "full"])
async def test_what_could_never_be_accepted_is_400(
    tight: Service, asked: dict[str, Any], most: int, busy: bool
) -> None:
    cost = len(asked.get("prompt", "a")) * asked.get("n", 1)

    async def ask() -> None:
        async with tight.async_client() as client:
            answer = await client.post(COMPLETIONS.path, json=body(temperature=1) | asked)
        assert answer.status_code == 400
        error = error_of(answer)
        assert error["code"] == "invalid_value"
        assert {str(cost), str(most)} <= set(re.findall(r"\d+", error["message"]))
        assert "retry-after" not in answer.headers

    before = await scrape(tight)
    if busy:
        async with full(tight):
            await ask()
    else:
        await ask()
    assert accepted(await scrape(tight)) - accepted(before) == (BOUND if busy else 0)


async def test_a_refusal_is_quick_whatever_is_refused(tight: Service) -> None:
    big = body(prompt="word " * 200_000)
    async with tight.async_client() as client, full(tight):
        began = time.monotonic()
        assert_refused(await client.post(COMPLETIONS.path, json=big), 429, "queue_full")
        # The contract's tenth of a second, and ten times that for a busy machine.
        assert time.monotonic() - began < 1.0


# -- waiting


async def test_what_waits_too_long_is_timed_out_and_what_runs_is_not(hopeful: Service) -> None:
    """Also what is inside the engine already, and a stream before its first byte."""
    before = await scrape(hopeful)
    async with (
        hopeful.async_client() as client,
        hold(hopeful, SLOTS, max_tokens=LONG) as busy,
        hold(hopeful, 2, started=0) as waiting,
    ):
        waiting.may_end = True
        prompts = total(await until_pending(hopeful, 2), "vllm:prompt_tokens_total")
        began = time.monotonic()
        tasks = [asyncio.create_task(client.post(COMPLETIONS.path, json=body())) for _ in range(2)]
        samples = await until_pending(hopeful, MAX_PENDING)
        await until_metrics(hopeful, lambda s: engine_waiting(s) == LOOKAHEAD)
        assert rejected(samples, "queue_timeout") == rejected(before, "queue_timeout")
        answers = await asyncio.gather(*tasks)
        assert time.monotonic() - began >= 0.9 * QUEUE_TIMEOUT_S
        await waiting.finish()
        for answer in [*answers, *map(response_of, waiting)]:
            assert_refused(answer, 503, "queue_timeout")
        after = await until_metrics(hopeful, lambda s: pending(s) == 0)
        assert running(after) == SLOTS
        assert not any(stream.ended for stream in busy)
        assert finished(after, reason="timeout") - finished(before, reason="timeout") == MAX_PENDING
        assert rejected(after, "queue_timeout") - rejected(before, "queue_timeout") == MAX_PENDING
        await until_metrics(hopeful, lambda s: engine_waiting(s) == 0)
        assert total(await scrape(hopeful), "vllm:prompt_tokens_total") == prompts
        busy.close()


async def test_what_would_wait_too_long_is_refused_at_once(tight: Service) -> None:
    await teach(tight, short=False)
    async with tight.async_client() as client, hold(tight, SLOTS, max_tokens=LONG) as held:
        before = await scrape(tight)
        began = time.monotonic()
        for stream in (False, True):
            answer = await client.post(COMPLETIONS.path, json=body(stream=stream))
            assert_refused(answer, 429, "overloaded")
        assert time.monotonic() - began < QUEUE_TIMEOUT_S / 2
        after = await scrape(tight)
        assert (pending(after), running(after)) == (0, SLOTS)
        assert rejected(after, "overloaded") - rejected(before, "overloaded") == 2
        assert accepted(after) == accepted(before)
        held.close()
        await until_metrics(tight, idle)
        assert (await client.post(COMPLETIONS.path, json=body())).status_code == 200


async def test_the_gauges_add_up_at_every_scrape_of_a_burst(tight: Service) -> None:
    before = await scrape(tight)
    scrapes: list[Samples] = []
    statuses: list[int] = []
    async with tight.async_client() as client:

        async def ask(number: int) -> None:
            for turn in range(10):
                asked = body(tokens=1 + (number + turn) % 20, n=1 + number % 2, temperature=1)
                answer = await client.post(COMPLETIONS.path, json=asked)
                statuses.append(answer.status_code)

        asking = asyncio.gather(*(ask(number) for number in range(20)))
        while not asking.done():
            scrapes.append(await scrape(tight))
        await asking
    for samples in scrapes:
        unfinished = accepted(samples) - finished(samples)
        assert pending(samples) + running(samples) == unfinished <= BOUND
        assert running(samples) <= SLOTS
        assert demand(samples) >= unfinished
    assert max(map(pending, scrapes)) > 0
    after = await until_metrics(tight, idle)
    assert set(statuses) == {200, 429}
    refused = rejected(after, "queue_full") - rejected(before, "queue_full")
    refused += rejected(after, "overloaded") - rejected(before, "overloaded")
    assert statuses.count(429) == refused
    # The last minute's refusals, of which those before the test may have left.
    assert refused <= demand(after)
    assert accepted(after) == finished(after)


# -- order


@asynccontextmanager
async def behind_others(service: Service) -> AsyncIterator[Held]:
    """All slots are taken, and the lookahead too: whoever comes now waits in front of the engine.

    Yields what holds the slots. It has the default priority, so nobody in this module may ask for
    a more urgent one: for a minute, there would be no lookahead for this.
    """
    async with (
        hold(service, SLOTS, max_tokens=LONG) as busy,
        hold(service, LOOKAHEAD, started=0, max_tokens=1) as ahead,
    ):
        ahead.may_end = True
        await until_metrics(service, lambda s: engine_waiting(s) == LOOKAHEAD)
        yield busy
        busy.close()
        await ahead.finish()
        assert {stream.status for stream in ahead} == {200}


@pytest.mark.parametrize(
    ("low", "high"),
    [
        pytest.param(({"priority": 5}, {}), ({"priority": 1}, {}), id="body"),
        pytest.param(({}, {"x-vllm-priority": "5"}), ({}, {"X-Vllm-Priority": "1"}), id="header"),
        # A header is what a gateway adds; the client's own word is nearer.
        pytest.param(
            ({"priority": 5}, {"x-vllm-priority": "-9"}),
            ({"priority": 4}, {"x-vllm-priority": "9"}),
            id="body before header",
        ),
    ],
)
async def test_the_more_urgent_goes_first(
    hopeful: Service,
    low: tuple[dict[str, Any], dict[str, str]],
    high: tuple[dict[str, Any], dict[str, str]],
) -> None:
    order: list[str] = []

    async with hopeful.async_client() as client, behind_others(hopeful) as busy:

        async def ask(name: str, asked: dict[str, Any], headers: dict[str, str]) -> None:
            answer = await client.post(COMPLETIONS.path, json=body(20) | asked, headers=headers)
            assert answer.status_code == 200, answer.text
            order.append(name)

        later = asyncio.create_task(ask("low", *low))
        await until_pending(hopeful, LOOKAHEAD + 1)
        sooner = asyncio.create_task(ask("high", *high))
        await until_pending(hopeful, LOOKAHEAD + 2)
        # One slot frees, so that they follow each other.
        busy.may_end = True
        busy.tasks[0].cancel()
        await asyncio.gather(later, sooner)
    assert order == ["high", "low"]


async def test_a_full_queue_makes_room_for_the_more_urgent(hopeful: Service) -> None:
    async with hopeful.async_client() as client, behind_others(hopeful) as busy:

        async def ask(priority: int) -> httpx.Response:
            return await client.post(COMPLETIONS.path, json=body(priority=priority))

        low = [asyncio.create_task(ask(5)) for _ in range(2)]
        await until_pending(hopeful, MAX_PENDING)
        assert_refused(await ask(5), 429, "queue_full")
        high = asyncio.create_task(ask(0))
        done, (kept,) = await asyncio.wait(low, return_when=asyncio.FIRST_COMPLETED)
        (displaced,) = done
        assert_refused(displaced.result(), 429, "queue_full")
        assert pending(await scrape(hopeful)) == MAX_PENDING
        busy.close()
        assert [answer.status_code for answer in await asyncio.gather(high, kept)] == [200, 200]


@pytest.mark.parametrize("given", ["urgent", "1.5", ""])
async def test_a_priority_that_is_no_integer_is_400(tight: Service, given: str) -> None:
    async with tight.async_client() as client:
        headers = {"x-vllm-priority": given}
        answer = await client.post(COMPLETIONS.path, json=body(), headers=headers)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_value"


# -- clients that come back


def patient(service: Service) -> openai.AsyncOpenAI:
    """As people use it: it tries again twice."""
    return openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none")


async def complete(client: openai.AsyncOpenAI) -> int:
    """The tokens that were made."""
    answer = await client.completions.create(model="tiny", prompt="Hello", max_tokens=2)
    assert answer.usage is not None
    return answer.usage.completion_tokens


async def test_the_openai_client_comes_back_when_it_is_told_to(hopeful: Service) -> None:
    before = await scrape(hopeful)
    async with full(hopeful) as held, patient(hopeful) as client:
        answer = asyncio.create_task(complete(client))
        await until_metrics(
            hopeful, lambda s: rejected(s, "queue_full") > rejected(before, "queue_full")
        )
        held.close()
        assert await answer
    after = await until_metrics(hopeful, idle)
    assert rejected(after, "queue_full") - rejected(before, "queue_full") == 1
    assert accepted(after) - accepted(before) == BOUND + 1


async def test_the_openai_client_gives_up_in_the_end(hopeful: Service) -> None:
    before = await scrape(hopeful)
    async with full(hopeful), patient(hopeful) as client:
        began = time.monotonic()
        with pytest.raises(openai.RateLimitError) as refusal:
            await complete(client)
        # By itself it would wait for at most 0.5 and then 1 s.
        assert time.monotonic() - began >= 2.0
        assert refusal.value.code == "queue_full"
    after = await until_metrics(hopeful, idle)
    assert rejected(after, "queue_full") - rejected(before, "queue_full") == 3
    assert accepted(after) - accepted(before) == BOUND


# -- the KV cache as the limit

BLOCKS = 21
"""One of them is vLLM's own, for padding."""
KV_SLOTS = 16
KV_LOOKAHEAD = 2
KV_TIMEOUT_S = 25.0
KV_PROMPT = 500
KV_TOKENS = 20
"""With the prompt, five blocks of 128 tokens, the fifth of which is needed on the way."""
KV_LONG = 2000
"""Alone as good as all of the cache, for 4 to 10 seconds."""


ALICE = {"authorization": "Bearer alice's"}
BOB = {"authorization": "Bearer bob's"}


@pytest.fixture(scope="module")
def cramped(
    start_module_service: StartService, tmp_path_factory: pytest.TempPathFactory
) -> Service:
    """Only for those who have a key."""
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text(f"{ENTRY}  priority: -5\n- name: bob\n  sha256: {OTHER}\n")
    return start_module_service(
        auth__keys_file=keys,
        server__ops_port=free_port(),
        engine__max_num_seqs=KV_SLOTS,
        engine__max_model_len=2048,
        engine__num_gpu_blocks_override=BLOCKS,
        engine__max_num_batched_tokens=2048,
        admission__queue_timeout_s=KV_TIMEOUT_S,
        metrics__poll_interval_s=0.1,
    )


def block_size(samples: Samples) -> int:
    (info,) = [dict(labels) for (name, labels) in samples if name == "vllm:cache_config_info"]
    assert int(info["num_gpu_blocks"]) == BLOCKS
    return int(info["block_size"])


@pytest.fixture
async def fitting(cramped: Service) -> AsyncIterator[int]:
    """How many of the requests fit; far fewer than there are slots."""
    count = (BLOCKS - 1) // -(-(KV_PROMPT + KV_TOKENS) // block_size(await scrape(cramped)))
    assert 3 <= count <= KV_SLOTS // 4
    yield count
    await until_metrics(cramped, idle)


async def test_the_engines_queue_stays_short_when_the_cache_is_the_limit(
    cramped: Service, fitting: int
) -> None:
    numbers = iter(range(60))
    order: list[int] = []
    scrapes: list[Samples] = []
    async with cramped.async_client() as client:

        async def ask(number: int, priority: int = 0) -> None:
            asked = body(KV_TOKENS, prompt=[100 + number] * KV_PROMPT, priority=priority)
            answer = await client.post(COMPLETIONS.path, json=asked, headers=ALICE)
            assert answer.status_code == 200, answer.text
            order.append(number)

        async def keep_asking() -> None:
            for number in numbers:
                await ask(number)

        asking = [asyncio.create_task(keep_asking()) for _ in range(20)]
        urgent = None
        while not all(task.done() for task in asking):
            scrapes.append(await scrape(cramped))
            if urgent is None and len(order) >= 10:
                sent_after = len(order)
                urgent = asyncio.create_task(ask(100, priority=-1))
        await asyncio.gather(*asking)
        assert urgent is not None
        await urgent
    assert sorted(order) == [*range(60), 100]
    assert total(scrapes[-1], "vllm:num_preemptions_total") == 0
    assert max(map(engine_waiting, scrapes)) <= KV_LOOKAHEAD
    assert max(map(pending, scrapes)) > 8
    assert max(map(running, scrapes)) == fitting
    # Those that are inside already end before it, and nobody else of the sixteen that wait.
    assert order.index(100) - sent_after <= fitting + KV_LOOKAHEAD + 4


async def test_keys_share_the_cache_when_it_is_the_limit(cramped: Service, fitting: int) -> None:
    """Bob comes when all of Alice's requests are waiting already."""
    order: list[str] = []
    async with cramped.async_client() as client:

        async def ask(name: str, headers: dict[str, str], number: int) -> None:
            asked = body(KV_TOKENS, prompt=[100 + number] * KV_PROMPT)
            answer = await client.post(COMPLETIONS.path, json=asked, headers=headers)
            assert answer.status_code == 200, answer.text
            order.append(name)

        alices = [asyncio.create_task(ask("alice", ALICE, number)) for number in range(40)]
        await until_metrics(cramped, lambda samples: pending(samples) >= 25, every=0.01)
        sent_after = len(order)
        bobs = [asyncio.create_task(ask("bob", BOB, 40 + number)) for number in range(10)]
        await asyncio.gather(*alices, *bobs)
    before_bob = order[:sent_after]
    assert set(before_bob) <= {"alice"}
    # From Bob's first on they take turns, so his last is not far behind that of as many of hers.
    until_last = order[order.index("bob") : len(order) - order[::-1].index("bob")]
    assert until_last.count("alice") <= until_last.count("bob") + fitting
    assert order.index("bob") - sent_after <= 2 * (fitting + KV_LOOKAHEAD)
    assert order[-1] == "alice"


async def test_timers_go_off_when_the_cache_is_the_limit(cramped: Service) -> None:
    """Behind more urgent ones, each of which needs all of the cache for some seconds."""
    before = await scrape(cramped)
    long = hold(
        cramped, 8, started=1, max_tokens=KV_LONG, prompt="Hello", priority=-1, headers=ALICE
    )
    async with cramped.async_client() as client, long as held:
        held.may_end = True
        asked = body(tokens=1400, prompt=[7] * KV_PROMPT)
        began = time.monotonic()
        posts = (client.post(COMPLETIONS.path, json=asked, headers=ALICE) for _ in range(5))
        tasks = [asyncio.create_task(post) for post in posts]
        scrapes = []
        while not all(task.done() for task in tasks):
            scrapes.append(await scrape(cramped))
            await asyncio.sleep(0.1)
        assert time.monotonic() - began >= 0.9 * KV_TIMEOUT_S
        assert max(map(pending, scrapes)) >= 5
        for answer in await asyncio.gather(*tasks):
            assert_refused(answer, 503, "queue_timeout")
        assert max(map(engine_waiting, scrapes)) <= KV_LOOKAHEAD
        assert {stream.status for stream in held if stream.started} == {200}
        held.close()
    after = await until_metrics(cramped, idle)
    preemptions = "vllm:num_preemptions_total"
    assert total(after, preemptions) == total(before, preemptions)
