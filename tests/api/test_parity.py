"""The same requests to vLLM's own server and to ours: the same answers, whatever way they take.

Greedy or seeded, one at a time. What may differ: ids, times, how a stream is cut into chunks, and
what `docs/parity.md` lists.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.tiny_model import EOS
from tests.conftest import StartService
from tests.rig.peer import Peer
from tests.rig.routes import CHAT, COMPLETIONS, Json, Route, events_of

SEEDED: Json = {"temperature": 1.0, "seed": 11}
GREEDY: Json = {"temperature": 0.0}

COMMON: Mapping[str, Json] = {
    "nothing": {},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "many tokens": {"max_tokens": 60},
    "no limit": {"max_tokens": None},
    "two samples": SEEDED | {"n": 2},
    "three samples": SEEDED | {"n": 3},
    "sampled": SEEDED,
    "top_p": SEEDED | {"top_p": 0.5},
    "top_k": SEEDED | {"top_k": 3},
    "min_p": SEEDED | {"min_p": 0.2},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.5},
    "repetition": {"repetition_penalty": 1.8},
    "stop": {"stop": ["e"]},
    "stops over tokens": {"stop": ["e t", "at", "in "]},
    "stop that never comes": {"stop": ["☃☃☃☃☃"]},
    "stop kept": {"stop": ["a", "e"], "include_stop_str_in_output": True},
    "stop token": {"stop_token_ids": [101, 102, 103, 104, 105, 110, 115]},
    "to the end": {"ignore_eos": False, "logit_bias": {str(EOS): 100}},
    "bias": {"logit_bias": {"100": 50, "200": 50}},
    "at least": {"min_tokens": 10, "stop": ["e"]},
    "allowed": {"allowed_token_ids": [65, 66, 67, 200, 300]},
    "special tokens": {"skip_special_tokens": False},
    "broken characters": {"logit_bias": {"172": 60, "230": 60, "150": 55}},
    "usage": {"stream_options": {"include_usage": True}},
    "usage all along": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "json": {"response_format": {"type": "json_object"}},
    "pattern": {"structured_outputs": {"regex": "[a-f]{5,12}"}},
    "choice": {"structured_outputs": {"choice": ["red", "green", "blue"]}},
    "token ids": {"return_token_ids": True},
    "without effect": {"user": "someone", "priority": 3},
}
ONLY_COMPLETIONS: Mapping[str, Json] = {
    "prompts": {"prompt": ["Once upon", "a time", "there"]},
    "prompts of ids": {"prompt": [[10, 20, 30], [40, 50]]},
    "ids": {"prompt": [72, 101, 108, 108, 111]},
    "unicode": {"prompt": "Größe 😀 日本語 \u2028 \u0007"},
    "long": {"prompt": "word " * 150},
    "echo": {"echo": True},
    "logprobs": {"logprobs": 2},
    "prompt logprobs": {"prompt_logprobs": 1},
    "truncated": {"prompt": "word " * 50, "truncate_prompt_tokens": 5},
}
ONLY_CHAT: Mapping[str, Json] = {
    "conversation": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "Größe 😀?"},
        ]
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    "continued": {
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Well,"},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "chat logprobs": {"logprobs": True, "top_logprobs": 2},
    "chat limit": {"max_tokens": None, "max_completion_tokens": 7},
    "tools": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    },
    "tool choice": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "none",
    },
    # Without a limit a chat goes on to the end of the context.
    "no limit": {
        "max_tokens": None,
        "messages": [{"role": "user", "content": "word " * 480}],
    },
}
PAIRS = 60
TOKENS = 12
"""Unless a shape says how many: a first one, a last one, and enough between them to be pushed."""


def shapes(own: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """Every parameter alone, and a fixed choice of pairs."""
    parameters = {**COMMON, **own}
    yield from parameters.items()
    pairs = list(itertools.combinations(parameters, 2))
    for one, other in random.Random(5).sample(pairs, PAIRS):
        yield f"{one} + {other}", {**parameters[one], **parameters[other]}


CASES = [
    pytest.param(route, values, stream, id=f"{route.name}: {name}{' (stream)' if stream else ''}")
    for route, own in ((COMPLETIONS, ONLY_COMPLETIONS), (CHAT, ONLY_CHAT))
    for name, values in shapes(own)
    for stream in (False, True)
]


@pytest.fixture(scope="module")
def twin(
    start_module_service: StartService,
    tiny_model: Path,
    tiny_lora: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Their server and ours, started at the same time.

    Without a prefix cache: what it holds decides how a prompt is computed, and so how it rounds.
    """
    ours = start_module_service(
        wait=False,
        engine__enable_prefix_caching=False,
        frontend__enable_auto_tool_choice=True,
        frontend__tool_call_parser="hermes",
    )
    log = tmp_path_factory.mktemp("peer") / "log"
    with Peer(tiny_model, tiny_lora, log, "--no-enable-prefix-caching") as theirs:
        ours.wait_ready()
        yield theirs.client(), ours.client()


def test_there_are_enough() -> None:
    assert len(CASES) >= 300


@pytest.mark.parametrize(("route", "values", "stream"), CASES)
def test_the_answer_is_the_same(
    twin: tuple[httpx.Client, httpx.Client], route: Route, values: Json, stream: bool
) -> None:
    body = GREEDY | route.body(tokens=TOKENS) | values
    if stream:
        body |= {"stream": True}
    else:
        body.pop("stream_options", None)
    with ThreadPoolExecutor(2) as both:
        theirs, ours = both.map(lambda server: said(server, route, body, stream), twin)
    assert ours[0] == theirs[0]
    if theirs[1]:  # or all of its texts came with a beginning or an end
        assert ours[1] <= theirs[1]


def said(server: httpx.Client, route: Route, body: Json, stream: bool) -> tuple[Any, set[Any]]:
    """What a server says to a request, but for what may differ; and its `middles`."""
    answer = server.post(route.path, json=body)
    if answer.status_code != 200:
        return answer.status_code, set()
    if not stream:
        return leaf(answer.json()), set()
    events = events_of(answer.text)
    chunks = [event.data for event in events if event.data is not None]
    assert events[-1].done
    return put_together(chunks), middles(chunks)


def leaf(answer: Json) -> Json:
    """Without what differs between any two servers: the fingerprint is one of the configuration."""
    left_out = ("id", "created", "system_fingerprint")
    kept = {key: value for key, value in answer.items() if key not in left_out}
    return kept | {"keys": set(answer)}


def put_together(chunks: list[Json]) -> Json:
    """A stream as one answer: joined texts and lists, the last of everything else.

    The keys of chunks are kept as sets: which there are does not depend on the cut.
    """
    whole: Json = {"keys": set(), "ends": 0}
    choices: dict[int, Json] = defaultdict(dict)
    for chunk in chunks:
        # By the contract, every chunk of ours has it when it is asked for.
        whole["keys"] |= set(chunk) - {"usage"}
        if chunk.get("usage"):
            whole["usage"] = chunk["usage"]
        whole |= {"model": chunk["model"], "object": chunk["object"]}
        for choice in chunk["choices"]:
            join(choices[choice["index"]], choice)
            whole["ends"] += choice["finish_reason"] is not None
    return whole | {"choices": dict(choices)}


def shape(part: Any) -> Any:
    """Which keys there are, and which values are null."""
    if isinstance(part, dict):
        return frozenset((key, shape(value)) for key, value in part.items() if key != "usage")
    return part is None


def middles(chunks: list[Json]) -> set[Any]:
    """The shapes of chunks that bring a text and neither begin nor end a choice."""
    begun: set[int] = set()
    found: set[Any] = set()
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice.get("text") or choice.get("delta", {}).get("content")
            if choice["index"] in begun and text and choice["finish_reason"] is None:
                found.add((shape(chunk), shape(choice)))
            if text:
                begun.add(choice["index"])
    return found


def join(whole: Json, part: Json) -> None:
    for key, value in part.items():
        if isinstance(value, dict):
            whole[key] = whole.get(key) or {}
            join(whole[key], value)
        elif isinstance(value, str) and key in ("text", "content"):
            whole[key] = (whole.get(key) or "") + value
        elif isinstance(value, list):
            whole[key] = (whole.get(key) or []) + value
        elif value is not None or key not in whole:
            whole[key] = value
