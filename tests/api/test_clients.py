"""The clients that people use, unmodified."""

import anthropic
import openai
import pytest
from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionUserMessageParam

from tests.rig.service import Service

PROMPT = "Once upon a time"
CHAT: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": PROMPT}]
MESSAGES: list[MessageParam] = [{"role": "user", "content": PROMPT}]
TOKENS = 12
IGNORE_EOS = {"ignore_eos": True}
GREEDY = {"temperature": 0}


def tokens_of(service: Service, **body: object) -> int:
    answer = service.client().post("/tokenize", json={"model": "tiny", **body})
    return int(answer.raise_for_status().json()["count"])


def test_completions(service: Service) -> None:
    answer = service.openai().completions.create(
        model="tiny", prompt=PROMPT, max_tokens=TOKENS, temperature=0, extra_body=IGNORE_EOS
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.text
    assert answer.object == "text_completion"
    assert answer.model == "tiny"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS
    assert answer.usage.prompt_tokens == tokens_of(service, prompt=PROMPT)


def test_completions_streamed(service: Service) -> None:
    client = service.openai()
    whole = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=TOKENS, temperature=0, extra_body=IGNORE_EOS
    )
    stream = client.completions.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=IGNORE_EOS,
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {chunk.id for chunk in chunks} == {last.id}
    assert last.choices == []
    assert last.usage == whole.usage


def test_chat(service: Service) -> None:
    answer = service.openai().chat.completions.create(
        model="tiny", messages=CHAT, max_completion_tokens=TOKENS, temperature=0
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS
    assert answer.usage.prompt_tokens == tokens_of(service, messages=CHAT)


def test_chat_streamed(service: Service) -> None:
    client = service.openai()
    whole = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=TOKENS, temperature=0
    )
    stream = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert last.choices == []
    assert last.usage == whole.usage


async def test_the_asynchronous_client(service: Service) -> None:
    async with service.async_openai() as client:
        stream = await client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=TOKENS, stream=True, extra_body=IGNORE_EOS
        )
        reasons = [chunk.choices[0].finish_reason async for chunk in stream]
    assert reasons[-1] == "length"


def test_models(service: Service) -> None:
    client = service.openai()
    listed = {model.id: model for model in client.models.list()}
    assert list(listed) == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("no/such/model")
    assert raised.value.code == "model_not_found"


def test_errors_have_their_classes(service: Service) -> None:
    client = service.openai()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="none", prompt=PROMPT)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="tiny", prompt=PROMPT, temperature=-1)
    assert bad.value.code == "invalid_value"
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "word " * 2000}], stream=True
        )
    assert long.value.code == "context_length_exceeded"


def test_responses(service: Service) -> None:
    answer = service.openai().responses.create(
        model="tiny", input=PROMPT, max_output_tokens=TOKENS, temperature=0
    )
    assert answer.output_text
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.output_tokens == TOKENS
    assert answer.usage.input_tokens == tokens_of(service, messages=CHAT)


def test_responses_streamed(service: Service) -> None:
    client = service.openai()
    whole = client.responses.create(
        model="tiny", input=PROMPT, max_output_tokens=TOKENS, temperature=0
    )
    stream = client.responses.create(
        model="tiny", input=PROMPT, max_output_tokens=TOKENS, temperature=0, stream=True
    )
    events = list(stream)
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage


def test_messages(service: Service) -> None:
    client = service.anthropic()
    answer = client.messages.create(
        model="tiny", messages=MESSAGES, max_tokens=TOKENS, extra_body=GREEDY
    )
    (block,) = answer.content
    assert block.type == "text"
    assert block.text
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == TOKENS
    counted = client.messages.count_tokens(model="tiny", messages=MESSAGES)
    assert counted.input_tokens == answer.usage.input_tokens
    assert counted.input_tokens == tokens_of(service, messages=CHAT)


def test_messages_streamed(service: Service) -> None:
    client = service.anthropic()
    whole = client.messages.create(
        model="tiny", messages=MESSAGES, max_tokens=TOKENS, extra_body=GREEDY
    )
    with client.messages.stream(
        model="tiny", messages=MESSAGES, max_tokens=TOKENS, extra_body=GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens


def test_messages_errors_have_their_classes(service: Service) -> None:
    client = service.anthropic()
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="none", messages=MESSAGES, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model="tiny", messages=MESSAGES, max_tokens=5000)
    assert isinstance(bad.value.body, dict)
    assert bad.value.body["type"] == "error"
    assert bad.value.body["error"]["type"] == "invalid_request_error"
