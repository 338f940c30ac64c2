"""The scripted server itself: what it plays is what it says, at the times it says."""

import statistics
from asyncio import TaskGroup
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.rig.samples import Samples, parsed, total
from tests.rig.sse_plays import PLAIN, WORD, Asked, answer, script
from tests.rig.sse_process import SseServer
from tests.rig.sse_server import Here, serve_here
from tests.rig.streams import until

MESSAGES: Any = [{"role": "user", "content": "three small words"}]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SseServer]:
    with SseServer(tmp_path_factory.mktemp("sse") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    with serve_here() as running:
        yield running


@pytest.fixture(scope="module")
def client(here: Here) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=here.url, trust_env=False) as opened:
        yield opened


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": "three small words", "max_tokens": 5, **fields}


@pytest.mark.parametrize("play", sorted(PLAIN - {"no_finish", "illegal_finish"}))
def test_the_openai_client_reads_a_stream(process: SseServer, play: str) -> None:
    options: Any = {"include_usage": True}
    chunks = list(
        process.openai().chat.completions.create(
            model="scripted",
            messages=MESSAGES,
            max_tokens=5,
            stream=True,
            stream_options=options,
            extra_body={"script": {"play": play}},
        )
    )
    texts = [
        choice.delta.content or getattr(choice.delta, "reasoning_content", None) or ""
        for chunk in chunks
        for choice in chunk.choices
    ]
    sent = 3 if play == "short" else 5
    assert "".join(texts) == WORD * sent
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "length"
    usage = chunks[-1].usage
    if play == "no_usage":
        assert usage is None
    else:
        assert usage is not None
        assert usage.prompt_tokens == 3 + 7
        assert usage.completion_tokens == sent + 2 * (play == "wrong_usage")


def test_the_openai_client_reads_whole_answers(process: SseServer) -> None:
    client = process.openai()
    completion = client.completions.create(model="scripted", prompt=[7, 8], max_tokens=5)
    chat = client.chat.completions.create(model="scripted", messages=MESSAGES, max_tokens=5)
    assert completion.choices[0].text == chat.choices[0].message.content == WORD * 5
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (2, 5)
    assert [model.id for model in client.models.list()] == ["scripted"]


def test_usage_goes_with_each_chunk_when_asked(process: SseServer) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = process.openai().completions.create(
        model="scripted",
        prompt="three small words",
        max_tokens=5,
        stream=True,
        stream_options=options,
        extra_body={"script": {"tokens_per_chunk": 2}},
    )
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [2, 4, 5, 5]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (asked(model="other"), 404),
        (asked(script={"play": "no such"}), 400),
        (asked(script={"no_such_field": 1}), 400),
        (asked(script=[]), 400),
    ],
)
def test_what_it_cannot_do_is_refused(
    client: httpx.Client, body: dict[str, Any], status: int
) -> None:
    response = client.post("/v1/completions", json=body)
    assert response.status_code == status
    assert response.json()["error"]["code"] == status


def test_a_default_script_that_cannot_be_played_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="no such play"), serve_here(play="no such"):
        pass


async def test_its_gauges_follow_requests(here: Here, client: httpx.Client) -> None:
    def page() -> Samples:
        return parsed(client.get("/metrics").raise_for_status().text)

    def gauges() -> list[float]:
        names = ("num_requests_waiting", "num_requests_running", "prefix_cache_hits_total")
        return [total(page(), f"vllm:{name}") for name in names]

    def own(play: str) -> dict[str, Any]:
        return asked(stream=True, prompt="a b", script={"play": play})

    async with (
        httpx.AsyncClient(base_url=here.url, trust_env=False) as parallel,
        TaskGroup() as tasks,
    ):
        posts = [
            tasks.create_task(parallel.post("/v1/completions", json=own(play)))
            for play in ("stall", "hang", "hang")
        ]
        await until(lambda: gauges() == [2, 1, 6])
        for post in posts:
            post.cancel()
    await until(lambda: gauges() == [0, 0, 6])
    assert [one.left for one in here.site.timelines][-3:] == [True, True, True]
    assert total(page(), "process_start_time_seconds") > 1.7e9


def played(**fields: Any) -> list[bytes]:
    request = Asked(
        script(fields),
        chat=True,
        stream=True,
        prompt="",
        prompt_tokens=1,
        max_tokens=8,
        request_id="id",
    )
    writes, _ = answer(request)
    return [write.data for write in writes]


def test_split_cuts_characters_and_line_ends() -> None:
    pieces = [
        piece.split(b"\r\n", 1)[1].removesuffix(b"\r\n") for piece in played(play="split")[1:-1]
    ]
    pairs = list(pairwise(pieces))
    assert sum(a.endswith(b"\xc3") and b.startswith(b"\xb6") for a, b in pairs) == 8
    assert sum(a.endswith(b"\r") and b.startswith(b"\n") for a, b in pairs) == 2 * len(pieces) / 4


def test_events_are_bundled_in_writes() -> None:
    assert [data.count(b"data: ") for data in played(play="bundled_events")[1:-1]] == [5, 4, 2]


def test_sends_are_on_time(process: SseServer) -> None:
    own = {"ttft_s": 0.05, "itl_s": 0.01}
    client = process.client()
    for number in range(20):
        body = asked(stream=True, script=own, prompt=f"on time {number}")
        client.post("/v1/completions", json=body).raise_for_status()
    found = [one for one in process.timelines().values() if one.prompt.startswith("on time")]
    late = [
        moment - (one.received + own["ttft_s"] + number * own["itl_s"])
        for one in found
        for number, moment in enumerate(one.times)
    ]
    assert len(late) == 20 * 5
    assert min(late) > -0.0001
    # Other work on the machine makes some of them late, but not this many.
    assert statistics.quantiles(late)[0] < 0.0005
