"""Request parameters have vLLM's meaning, and a stream says what the whole answer says."""

import json
from typing import Any

import pytest

from loadtest.tiny_model import EOS, IM_END
from tests.rig.answers import TOKENS, ask, ask_streamed, counts, data_of, text_of, texts, token_ids
from tests.rig.routes import CHAT, COMPLETIONS, ROUTES, Json, Route, events_of
from tests.rig.service import Service

PROMPTS = ["Once upon a time", "What is the largest planet?", "Die Flut hebt alle Boote"]
N = 2
SAMPLED: dict[str, Any] = {"n": N, "temperature": 1, "seed": 3}
"""vLLM refuses several samples of a greedy text; these are the same each time."""

streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)


# -- prompts, samples, and their order


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("tokenised", [False, True], ids=["text", "ids"])
@streamed_or_not
def test_the_four_forms_of_a_prompt(
    service: Service, many: bool, tokenised: bool, stream: bool
) -> None:
    """Index `i*n+j` is the sample j of prompt i."""
    prompts = PROMPTS if many else PROMPTS[:1]
    alone = [texts(service, COMPLETIONS, stream=False, prompt=p, **SAMPLED) for p in prompts]
    expected = {i * N + j: text for i, own in enumerate(alone) for j, text in own.items()}
    assert len(set(expected.values())) == len(prompts) * N
    forms: list[Any] = [token_ids(service, p) for p in prompts] if tokenised else prompts
    form = forms if many else forms[0]
    assert texts(service, COMPLETIONS, stream=stream, prompt=form, **SAMPLED) == expected


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
@streamed_or_not
def test_samples_differ(service: Service, route: Route, stream: bool) -> None:
    found = texts(service, route, stream=stream, n=3, temperature=1)
    assert sorted(found) == [0, 1, 2]
    assert len(set(found.values())) == 3


@pytest.mark.parametrize(
    "more",
    [{}, SAMPLED, {"prompt": PROMPTS}, {"prompt": PROMPTS, **SAMPLED}, {"echo": True, **SAMPLED}],
    ids=str,
)
def test_the_usage_of_a_stream_is_that_of_the_whole_answer(
    service: Service, more: dict[str, Any]
) -> None:
    answer = ask(service, **more)
    whole = counts(answer["usage"])
    *chunks, last = data_of(ask_streamed(service, stream_options={"include_usage": True}, **more))
    assert last["choices"] == []
    assert last["usage"] == whole
    assert whole["completion_tokens"] == TOKENS * len(answer["choices"])
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)


def test_the_usage_of_a_chat_stream(service: Service) -> None:
    whole = ask(service, CHAT, **SAMPLED)["usage"]
    options: Json = {"include_usage": True}
    *chunks, last = data_of(ask_streamed(service, CHAT, stream_options=options, **SAMPLED))
    assert (last["choices"], last["usage"]) == ([], counts(whole))
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
def test_continuous_usage_grows_with_the_stream(service: Service, route: Route) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = data_of(ask_streamed(service, route, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == TOKENS == last["usage"]["completion_tokens"]
    assert last["choices"] == []


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
def test_without_include_usage_a_stream_has_none(service: Service, route: Route) -> None:
    for chunk in data_of(ask_streamed(service, route)):
        assert "usage" not in chunk
        assert len(chunk["choices"]) == 1


# -- the same text, streamed or not


@every_route
@pytest.mark.parametrize("number", range(4))
def test_a_stream_adds_up_to_the_whole_text(service: Service, route: Route, number: int) -> None:
    """With it, no U+FFFD that the whole text does not have: the model's bytes are often broken."""
    prompt = route.prompt(f"{PROMPTS[number % 3]} {number}")
    body = {**prompt, route.limit: 80}
    whole = ask(service, route, **body)
    events = ask_streamed(service, route, **body)
    assert route.text_of(events) == route.text(whole)
    assert any(ord(character) > 0x7F for character in route.text(whole))
    assert route.ended_well(events)
    assert not any(route.error(event) for event in events)


@pytest.mark.parametrize(
    ("route", "more"),
    [
        (COMPLETIONS, SAMPLED),
        (COMPLETIONS, {"prompt": PROMPTS}),
        (COMPLETIONS, {"prompt": PROMPTS, "echo": True, **SAMPLED}),
        (CHAT, SAMPLED),
    ],
    ids=["samples", "prompts", "prompts, samples and echo", "chat samples"],
)
def test_choices_add_up_to_the_whole_texts(
    service: Service, route: Route, more: dict[str, Any]
) -> None:
    whole = texts(service, route, stream=False, **more)
    assert texts(service, route, stream=True, **more) == whole


# -- what is generated


@streamed_or_not
def test_echo_repeats_the_prompt(service: Service, stream: bool) -> None:
    (plain,) = texts(service, COMPLETIONS, stream=False).values()
    (echoed,) = texts(service, COMPLETIONS, stream=stream, echo=True).values()
    assert echoed == PROMPTS[0] + plain


def test_echo_alone(service: Service) -> None:
    answer = ask(service, echo=True, max_tokens=0, logprobs=1)
    (choice,) = answer["choices"]
    assert choice["text"] == PROMPTS[0]
    assert len(choice["logprobs"]["tokens"]) == len(token_ids(service, PROMPTS[0]))


def test_logprobs_of_completions(service: Service) -> None:
    more: dict[str, Any] = {"logprobs": 2, "return_tokens_as_token_ids": True}
    whole = ask(service, **more)["choices"][0]["logprobs"]
    assert len(whole["tokens"]) == len(whole["token_logprobs"]) == TOKENS
    assert all(value <= 0 for value in whole["token_logprobs"])
    assert all(2 <= len(top) <= 3 for top in whole["top_logprobs"])
    chunks = data_of(ask_streamed(service, **more))
    tokens = [t for chunk in chunks for t in chunk["choices"][0]["logprobs"]["tokens"]]
    assert tokens == whole["tokens"]


def test_logprobs_of_chat(service: Service) -> None:
    whole = ask(service, CHAT, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(whole) == TOKENS
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole)
    assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in whole)
    chunks = data_of(ask_streamed(service, CHAT, logprobs=True, top_logprobs=2))
    parts = [chunk["choices"][0].get("logprobs") or {"content": []} for chunk in chunks]
    assert [e["token"] for part in parts for e in part["content"]] == [e["token"] for e in whole]


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
@streamed_or_not
def test_stop_strings_end_the_text_before_them(
    service: Service, route: Route, stream: bool
) -> None:
    (whole,) = texts(service, route, stream=False, **{route.limit: 60}).values()
    stop = whole[20:26]
    wanted = whole[: whole.index(stop)]
    found = texts(service, route, stream=stream, stop=[stop], **{route.limit: 60})
    assert found == {0: wanted}
    (choice,) = ask(service, route, stop=stop, **{route.limit: 60})["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    kept = {"stop": stop, "include_stop_str_in_output": True, route.limit: 60}
    assert texts(service, route, stream=stream, **kept)[0].startswith(wanted + stop)


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT], ids=lambda route: route.name)
def test_a_seed_makes_samples_repeatable(service: Service, route: Route) -> None:
    def sampled(seed: int | None) -> str:
        return texts(service, route, stream=False, temperature=1, seed=seed)[0]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert sampled(None) != sampled(None)


END: dict[str, Any] = {"logit_bias": {str(EOS): 100}}


def test_the_end_of_a_text(service: Service) -> None:
    def tokens_and_reason(**more: Any) -> tuple[int, str]:
        answer = ask(service, **END, **more)
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert tokens_and_reason(ignore_eos=False) == (1, "stop")
    assert tokens_and_reason(ignore_eos=True) == (TOKENS, "length")
    assert tokens_and_reason(ignore_eos=False, min_tokens=5) == (6, "stop")
    assert tokens_and_reason(ignore_eos=True, max_tokens=3) == (3, "length")
    assert tokens_and_reason(ignore_eos=True, stop_token_ids=[EOS]) == (1, "stop")


def test_logit_bias_decides_the_token(service: Service) -> None:
    (wanted,) = token_ids(service, "a")
    answer = ask(service, logit_bias={str(wanted): 100}, max_tokens=3)
    assert answer["choices"][0]["text"] == "aaa"


def test_the_whole_context_can_be_used_and_no_more(service: Service) -> None:
    prompt = [9] * 1000
    assert ask(service, prompt=prompt, max_tokens=24)["usage"]["total_tokens"] == 1024
    body = COMPLETIONS.body() | {"prompt": prompt, "max_tokens": 25}
    refused = service.client().post(COMPLETIONS.path, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    assert ask(service, prompt=prompt, max_tokens=None)["usage"]["completion_tokens"] == 16


def test_beams_can_use_the_whole_context(service: Service) -> None:
    answer = ask(service, prompt=[9] * 1016, max_tokens=8, use_beam_search=True, n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 16


# -- templates, adapters, ids


def test_chat_is_a_completion_of_its_template(service: Service) -> None:
    content = PROMPTS[0]
    rendered = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    assert token_ids(service, rendered).count(IM_END) == 1
    chat = ask(service, CHAT)
    completion = ask(service, prompt=rendered)
    assert text_of(chat["choices"][0]) == text_of(completion["choices"][0])
    assert chat["usage"] == completion["usage"]


def test_an_unfinished_message_is_continued(service: Service) -> None:
    more = {"add_generation_prompt": False}
    assert (
        ask(service, CHAT, **more)["usage"]["prompt_tokens"]
        < (ask(service, CHAT)["usage"]["prompt_tokens"])
    )


@every_route
@streamed_or_not
def test_an_adapter_is_chosen_by_its_name(inside: Service, route: Route, stream: bool) -> None:
    def text(model: str) -> str:
        if stream:
            return route.text_of(ask_streamed(inside, route, model=model))
        return route.text(ask(inside, route, model=model))

    assert text("tiny-lora") != text("tiny")
    assert text("tiny-lora") == text("tiny-lora")


def test_an_adapter_is_listed_and_named_in_the_answer(inside: Service) -> None:
    client = inside.client()
    listed = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["tiny", "tiny-lora"]
    assert client.get("/v1/models/tiny-lora").json()["parent"] == "tiny"
    assert ask(inside, model="tiny-lora")["model"] == "tiny-lora"


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}])
def test_what_would_kill_the_cpu_build_is_refused(inside: Service, fields: dict[str, Any]) -> None:
    """vllm's CPU build dies of a prompt's logprobs as soon as adapters are loaded."""
    body = COMPLETIONS.body(stream=False, **fields)
    answer = inside.client().post(COMPLETIONS.path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs"
    assert ask(inside)["usage"]["completion_tokens"] == TOKENS


@streamed_or_not
def test_a_priority_is_accepted(service: Service, stream: bool) -> None:
    body = COMPLETIONS.body(stream=stream, priority=7)
    answer = service.client().post(COMPLETIONS.path, json=body, headers={"x-vllm-priority": "-3"})
    assert answer.status_code == 200


@every_route
@streamed_or_not
def test_body_ids_are_unique_when_clients_repeat_theirs(
    service: Service, route: Route, stream: bool
) -> None:
    headers = {"x-request-id": "the-same"}
    client = service.client()
    body = route.body(stream=stream)
    answers = [client.post(route.path, json=body, headers=headers) for _ in range(3)]
    assert [answer.headers["x-request-id"] for answer in answers] == ["the-same"] * 3
    assert len({_body_id(answer.text, stream) for answer in answers}) == 3


def _body_id(text: str, stream: bool) -> str:
    body: Json = (events_of(text)[0].data or {}) if stream else json.loads(text)
    inner = body.get("response") or body.get("message") or body
    return str(inner["id"])
