"""OpenTelemetry: the span of a request is in its client's trace and has its id."""

import secrets
from collections.abc import Iterator

import pytest

from tests.conftest import StartService
from tests.rig.collector import Collector, Span, collector
from tests.rig.service import Service, until

ID = "gen_ai.request.id"
USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(start_module_service: StartService, traces: Collector) -> Service:
    return start_module_service(
        engine__otlp_traces_endpoint=traces.endpoint,
        env={
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            # Milliseconds that the exporter gathers spans for: 5,000 if not set.
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        },
    )


async def span_of(traces: Collector, request_id: str) -> Span:
    """The only span of a request."""

    def found() -> list[Span]:
        spans = traces.named("llm_request")
        return [span for span in spans if request_id in str(span.attributes.get(ID))]

    await until(lambda: bool(found()), within=30, why=f"for {request_id} in {traces.spans}")
    (span,) = found()
    return span


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 5}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 5, "stream": True}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 5}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 5, "stream": True}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 5}),
        ("/v1/messages", {"messages": USER, "max_tokens": 5}),
    ],
)
async def test_the_span_is_in_the_clients_trace(
    traced: Service, traces: Collector, path: str, body: dict[str, object]
) -> None:
    trace, parent, request_id = (secrets.token_hex(size) for size in (16, 8, 10))
    headers = {"traceparent": f"00-{trace}-{parent}-01", "x-request-id": request_id}
    answer = traced.client().post(path, json={"model": "tiny", **body}, headers=headers)
    assert answer.raise_for_status().headers["x-request-id"] == request_id
    span = await span_of(traces, request_id)
    assert (span.trace_id, span.parent_id) == (trace, parent)
    assert span.attributes["gen_ai.usage.completion_tokens"] == 5
    assert span.attributes["gen_ai.usage.prompt_tokens"] > 0
    assert 0 < span.start_ns <= span.end_ns


async def test_without_a_trace_of_the_client_it_has_its_own(
    traced: Service, traces: Collector
) -> None:
    answer = traced.client().post(
        "/v1/completions", json={"model": "tiny", "prompt": "Hello", "max_tokens": 5}
    )
    span = await span_of(traces, answer.raise_for_status().headers["x-request-id"])
    assert int(span.trace_id, 16) > 0
    assert span.parent_id == ""


def test_the_content_is_not_in_the_trace(traced: Service, traces: Collector) -> None:
    values = [
        str(value) for span in traces.named("llm_request") for value in span.attributes.values()
    ]
    assert values
    assert not any("Hello" in value for value in values)
