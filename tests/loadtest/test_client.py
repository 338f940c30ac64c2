"""One request against a server of known behaviour: what is measured is what was done."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loadtest.client import Ask, Client
from loadtest.plan import Planned
from loadtest.record import Outcome, Record
from loadtest.settings import Target
from tests.rig.server import LOOPBACK, free_port
from tests.rig.sse_process import SseServer
from tests.rig.sse_server import Here, Timeline, serve_here
from tests.rig.streams import until

ENDPOINTS = ("completions", "chat")
CLOSE_S, QUIET_S, MIN_QUIET = 0.002, 0.0005, 10
ASKED = 8
"""Tokens of each request."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SseServer]:
    with SseServer(tmp_path_factory.mktemp("sse") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    with serve_here() as running:
        yield running


def ask(number: int = 0) -> Ask:
    planned = Planned(number, 0.0, 4, ASKED, "default", number)
    return Ask(planned, f"prompt number {number}", time.monotonic())


async def send(target: Target, count: int = 1, every_s: float = 0.0) -> list[Record]:
    """So many requests, one after the other without waiting for answers."""
    async with Client(target, "scripted") as client, asyncio.TaskGroup() as tasks:
        sent = []
        for number in range(count):
            sent.append(tasks.create_task(client.send(ask(number))))
            await asyncio.sleep(every_s)
    return [task.result() for task in sent]


def play(url: str, play: str = "normal", **fields: Any) -> Target:
    return Target(url, timeout_s=20, extra={"script": {"play": play, **fields}})


# -- how a request ended


@dataclass(frozen=True)
class Expected:
    outcome: Outcome
    detail: str = ""
    tokens: int | None = ASKED
    chunks: int = ASKED
    status: int | None = 200
    retry_after_s: float | None = None


OK = Expected(Outcome.OK)
REFUSED = Expected(Outcome.REJECTED, "status 429: scripted 429", None, 0, 429, 1.5)
CUT = Expected(Outcome.CUT, tokens=3, chunks=3)
UNANSWERED = Expected(Outcome.CONNECTION, tokens=None, chunks=0, status=None)
STREAMED = {
    "normal": OK,
    "bundled": replace(OK, chunks=2),
    "bundled_events": OK,
    "split": OK,
    "empty": OK,
    "comments": OK,
    "reasoning": OK,
    "slow_headers": OK,
    "no_usage": OK,
    "wrong_usage": Expected(Outcome.WRONG_LENGTH, "10 tokens, not 8", tokens=10),
    "short": Expected(Outcome.WRONG_LENGTH, "6 tokens, not 8", tokens=6, chunks=6),
    "illegal_finish": Expected(Outcome.ILLEGAL_FINISH, "finish_reason 'abort'"),
    "no_finish": Expected(Outcome.ILLEGAL_FINISH, "finish_reason None"),
    "error": Expected(Outcome.STREAM_ERROR, "scripted error", tokens=3, chunks=3),
    "error_then_done": Expected(Outcome.STREAM_ERROR, "scripted error", tokens=3, chunks=3),
    "invalid_json": Expected(Outcome.STREAM_ERROR, "unreadable event", tokens=3, chunks=3),
    "cut": CUT,
    "cut_clean": replace(CUT, detail="the stream ended without [DONE]"),
    "reset": CUT,
    "drop": UNANSWERED,
    "garbage": UNANSWERED,
    "refuse": REFUSED,
    "refuse_503": replace(REFUSED, detail="status 503: scripted 503", status=503),
    "http_500": replace(
        REFUSED,
        outcome=Outcome.HTTP_ERROR,
        detail="status 500: scripted 500",
        status=500,
        retry_after_s=None,
    ),
}
ADVERSE = ("refuse", "refuse_503", "http_500", "drop", "garbage", "illegal_finish", "no_finish")
WHOLE = {
    "normal": OK,
    "slow_headers": OK,
    "wrong_usage": STREAMED["wrong_usage"],
    "short": STREAMED["short"],
    "no_usage": Expected(Outcome.WRONG_LENGTH, "None tokens, not 8", tokens=None),
    "invalid_json": Expected(Outcome.STREAM_ERROR, "unreadable event", tokens=None),
    "cut": Expected(Outcome.CUT, tokens=None),
    "reset": Expected(Outcome.CUT, tokens=None),
    **{name: STREAMED[name] for name in ADVERSE},
}


def check(record: Record, expected: Expected) -> None:
    assert record.outcome is expected.outcome, record.detail
    assert expected.detail in record.detail
    assert bool(record.detail) != record.ok
    assert record.status == expected.status
    assert record.output_tokens == expected.tokens
    assert record.retry_after_s == expected.retry_after_s
    assert record.sent is not None
    assert record.ended is not None
    assert record.intended <= record.sent < record.ended


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", STREAMED)
async def test_a_stream_is_classified(here: Here, endpoint: str, name: str) -> None:
    target = replace(play(here.url, name, itl_s=0.002), endpoint=endpoint)
    (record,) = await send(target)
    expected = STREAMED[name]
    check(record, expected)
    assert len(record.gaps) == max(0, expected.chunks - 1)
    assert record.chunk_tokens is None  # chunks alone do not tell how many tokens are in each
    assert (record.first is None) == (record.last is None) == (expected.chunks == 0)
    if record.ok:
        assert record.prompt_tokens == (None if name == "no_usage" else tokens_of_prompt(endpoint))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", WHOLE)
async def test_a_whole_answer_is_classified(here: Here, endpoint: str, name: str) -> None:
    target = replace(play(here.url, name), endpoint=endpoint, stream=False)
    (record,) = await send(target)
    check(record, WHOLE[name])
    assert record.first is None
    assert record.gaps == []
    assert record.chunk_tokens is None
    if record.ok:
        assert record.last is not None
        assert record.prompt_tokens == tokens_of_prompt(endpoint)


def tokens_of_prompt(endpoint: str) -> int:
    return 3 + (7 if endpoint == "chat" else 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("name", "status"), [("hang", None), ("stall", 200)])
async def test_patience_ends(here: Here, name: str, status: int | None, stream: bool) -> None:
    target = replace(play(here.url, name), timeout_s=0.2, stream=stream)
    (record,) = await send(target)
    partial = stream and name == "stall"
    expected = Expected(Outcome.TIMEOUT, "no end after 0.2 s", 3 if partial else None, 0, status)
    check(record, expected)
    assert len(record.gaps) == (2 if partial else 0)
    assert record.sent is not None
    assert record.ended is not None
    assert 0.2 <= record.ended - record.sent < 2
    await until(lambda: here.site.timelines[-1].left)


async def test_a_server_that_is_not_there() -> None:
    (record,) = await send(Target(f"http://{LOOPBACK}:{free_port()}"))
    check(record, UNANSWERED)
    assert record.first is record.last is None


async def test_a_server_that_dies_leaves_cut_streams(tmp_path_factory: Any) -> None:
    with SseServer(tmp_path_factory.mktemp("sse") / "log") as dying:
        target = play(dying.url, itl_s=0.05, tokens=1000)
        requests = asyncio.create_task(send(target, 5))
        await until(lambda: dying.metric("vllm:num_requests_running") == 5)
        await asyncio.sleep(0.1)
        dying.process.kill()
        for record in await requests:
            check(record, replace(CUT, tokens=record.output_tokens))
            assert record.output_tokens == len(record.gaps) + 1


async def test_a_cancelled_request_keeps_what_it_had(here: Here) -> None:
    record, asked = ask().record(), ask()
    async with Client(play(here.url, itl_s=0.01, tokens=1000), "scripted") as client:
        sending = asyncio.create_task(client.fill(record, asked))
        await until(lambda: bool(here.site.open and here.site.timelines[-1].times))
        await asyncio.sleep(0.05)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await until(lambda: here.site.timelines[-1].left)
    assert record.outcome is Outcome.CANCELLED
    assert record.output_tokens == len(record.gaps) + 1 > 1
    assert record.ended is not None


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "soon", ""])
async def test_a_senseless_wait_is_none(here: Here, wait: str) -> None:
    """Retry-After is read instead, which is 2 here; JSON has no infinity."""
    (record,) = await send(play(here.url, "refuse", retry_after_ms=wait))
    check(record, replace(REFUSED, retry_after_s=2.0))


# -- tokens


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_tokens_in_chunks_are_counted_where_the_server_tells(
    here: Here, endpoint: str
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    extra = {"script": {"tokens_per_chunk": 3}, "stream_options": options}
    (record,) = await send(Target(here.url, endpoint=endpoint, extra=extra))
    check(record, OK)
    assert record.chunk_tokens == ASKED
    assert [tokens for _, tokens in record.gaps] == [3, 2]


async def test_without_that_tokens_are_spread_over_chunks(here: Here) -> None:
    (record,) = await send(play(here.url, tokens_per_chunk=3))
    check(record, OK)
    assert record.chunk_tokens is None
    assert sum(tokens for _, tokens in record.gaps) in (5, 6)


@pytest.mark.parametrize(("sent", "continuous"), [(6, True), (12, True), (12, False)])
async def test_usage_that_disagrees_with_chunks_is_seen(
    here: Here, sent: int, continuous: bool
) -> None:
    own = {"tokens": sent, "usage_off_by": ASKED - sent}
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    (record,) = await send(Target(here.url, extra={"script": own, "stream_options": options}))
    check(record, OK)
    assert record.chunk_tokens == sent


async def test_a_model_may_stop_early_when_it_was_not_told_otherwise(here: Here) -> None:
    (record,) = await send(replace(play(here.url, "short", finish="stop"), ignore_eos=False))
    check(record, replace(OK, tokens=6))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning_is_text(here: Here, field: str) -> None:
    (record,) = await send(replace(play(here.url, reasoning=field), endpoint="chat"))
    check(record, OK)
    assert len(record.gaps) == ASKED - 1


# -- whatever comes


def nested(depth: int) -> str:
    return '{"error":' + "[" * depth + "]" * depth + "}"


FIELDS = st.sampled_from(
    [
        "choices",
        "usage",
        "error",
        "text",
        "delta",
        "message",
        "content",
        "reasoning",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
    max_leaves=10,
)


@pytest.mark.parametrize("stream", [True, False])
@given(events=st.lists(st.text(st.characters(codec="utf-8")) | JSON.map(str)))
@example(events=[nested(100_000)])
@example(events=["null"])
@example(events=['{"choices": null}'])
@example(events=['{"usage": {"completion_tokens": -1}}'])
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
async def test_no_answer_breaks_it(here: Here, stream: bool, events: list[str]) -> None:
    (record,) = await send(replace(play(here.url, "raw", events=events), stream=stream))
    assert record.outcome in (Outcome.STREAM_ERROR, Outcome.ILLEGAL_FINISH, Outcome.CUT)
    assert record.detail


# -- what is sent


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_keys_and_headers_go_with_a_request(here: Here, endpoint: str) -> None:
    target = Target(here.url + "/v1", endpoint=endpoint, key="common", headers={"X-Own": "1"})
    async with Client(target, "scripted") as client:
        check(await client.send(ask()), OK)
        check(await client.send(replace(ask(), key="own")), OK)
    first, second = list(here.site.timelines)[-2:]
    assert (first.headers["authorization"], first.headers["x-own"]) == ("Bearer common", "1")
    assert (second.headers["authorization"], second.headers["x-own"]) == ("Bearer own", "1")


async def test_nothing_is_held_back(here: Here) -> None:
    sending = asyncio.create_task(send(replace(play(here.url, "hang"), timeout_s=3), 300))
    await until(lambda: len(here.site.open) == 300, within=2.9)
    assert {record.outcome for record in await sending} == {Outcome.TIMEOUT}


async def test_an_unknown_model_is_an_error_of_http(here: Here) -> None:
    async with Client(Target(here.url), "other") as client:
        record = await client.send(ask())
    detail = "status 404: The model `other` does not exist."
    check(record, Expected(Outcome.HTTP_ERROR, detail, None, 0, 404))


# -- times

TTFT_S, ITL_S = 0.06, 0.01
STEADY = [TTFT_S + number * ITL_S for number in range(ASKED)]
DUE = {
    "normal": STEADY,
    "bundled": STEADY[:2],
    "bundled_events": STEADY[:1] * 4 + STEADY[4:5] * 4,
    "split": STEADY,
    "empty": STEADY,
    "comments": STEADY,
    "reasoning": STEADY,
    "slow_headers": STEADY,
}
"""Seconds from the request to each text, by the script."""


@dataclass(frozen=True)
class Pair:
    """A request as it was measured, and as the server did it."""

    record: Record
    real: Timeline

    def noted(self) -> list[float]:
        """The time of each text, of which a whole answer has one."""
        first = self.record.first or self.record.last
        assert first is not None
        return list(accumulate([first, *(gap for gap, _ in self.record.gaps)]))

    def off_reality(self) -> list[float]:
        """Seconds from what the server did to what was noted: the request, then each text."""
        assert self.record.sent is not None
        late = [seen - sent for seen, sent in zip(self.noted(), self.real.times, strict=True)]
        return [self.real.received - self.record.sent, *late]

    def off_script(self, due: list[float]) -> list[float]:
        """Seconds from when each text was due to when it was noted."""
        assert self.record.sent is not None
        return [seen - self.record.sent - at for seen, at in zip(self.noted(), due, strict=True)]

    def was_quiet(self, due: list[float]) -> bool:
        """Whether nothing else on the machine kept the server from its script."""
        times = zip(self.real.times, due, strict=True)
        return all(sent - self.real.received - at < QUIET_S for sent, at in times)


def medians(rows: list[list[float]]) -> list[float]:
    """Of each column."""
    return [median(column) for column in zip(*rows, strict=True)]


async def check_times(server: SseServer, target: Target, due: list[float]) -> None:
    """Other work on the machine only makes things late: one round of three must be near.

    The script counts only where the server could keep to it.
    """
    far: list[list[float]] = []
    for _ in range(3):
        records = await send(target, 50, every_s=0.007)
        assert {record.outcome for record in records} == {Outcome.OK}
        timelines = server.timelines()
        pairs = [Pair(record, timelines[record.request_id or ""]) for record in records]
        rows = [pair.off_reality() for pair in pairs]
        assert min(map(min, rows)) > 0, "noted before it was done"
        assert all(p.record.last == pytest.approx(p.noted()[-1], abs=1e-6) for p in pairs)
        quiet = [pair.off_script(due) for pair in pairs if pair.was_quiet(due)]
        far.append(medians(rows) + (medians(quiet) if len(quiet) >= MIN_QUIET else []))
        if max(map(abs, far[-1])) < CLOSE_S:
            return
    raise AssertionError(far)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", DUE)
async def test_times_of_a_stream(process: SseServer, endpoint: str, name: str) -> None:
    target = play(process.url, name, ttft_s=TTFT_S, itl_s=ITL_S)
    await check_times(process, replace(target, endpoint=endpoint), DUE[name])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_times_of_a_whole_answer(process: SseServer, endpoint: str) -> None:
    target = play(process.url, ttft_s=TTFT_S, itl_s=ITL_S)
    await check_times(process, replace(target, endpoint=endpoint, stream=False), STEADY[-1:])
