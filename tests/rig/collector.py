"""A collector of OpenTelemetry spans: OTLP over HTTP, on a loopback port."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.rig.http_thread import Answer, served
from tests.rig.server import LOOPBACK


@dataclass(frozen=True)
class Span:
    """A finished span; ids in hexadecimal, as in `traceparent`."""

    name: str
    trace_id: str
    parent_id: str
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int


@dataclass
class Collector:
    """What has arrived so far."""

    endpoint: str
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    """Collects until the end of the context."""
    found: list[Span] = []

    def collect(_path: str, body: bytes) -> Answer:
        found.extend(_spans(body))
        done = ExportTraceServiceResponse().SerializeToString()
        return 200, "application/x-protobuf", done

    with served(collect) as port:
        yield Collector(f"http://{LOOPBACK}:{port}/v1/traces", found)


def _spans(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    attributes={pair.key: _value(pair.value) for pair in span.attributes},
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
