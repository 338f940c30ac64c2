"""The service's own series: one list of definitions, and the registry that exposes them.

The engine's `vllm:*` series are in prometheus-client's global registry; `expose` gives both.
Names, types and labels are a contract with manifests and dashboards.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from app.lifecycle import Phase
from app.telemetry.logs import FinishedRequest

# Steps from a few ms (a cached prompt on a fast GPU) to minutes (a queue under overload).
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
# From one token of a small model to a stalling batch.
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 10)

# How far a prediction of a first token may be off, on both sides.
_ERROR_SECONDS = (
    -30,
    -10,
    -5,
    -2,
    -1,
    -0.5,
    -0.2,
    -0.1,
    -0.05,
    0,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    30,
)

_Kind = type[Gauge] | type[Counter] | type[Histogram]


@dataclass(frozen=True)
class Definition:
    """One series, as `docs/metrics.md` and the tests list it. All have `model_name`."""

    name: str
    kind: _Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] | None = None


DEFINITIONS = (
    Definition(
        "vllm_pending_requests",
        Gauge,
        "Accepted sequences that the engine is not running yet.",
    ),
    Definition("vllm_running_requests", Gauge, "Sequences in the continuous batch."),
    Definition("vllm_kv_cache_usage_percent", Gauge, "KV cache in use, 0 to 100."),
    Definition("vllm_kv_cache_usage_ratio", Gauge, "KV cache in use, 0 to 1."),
    Definition("vllm_pending_tokens", Gauge, "Prompt tokens of the pending sequences."),
    Definition(
        "tidegate_demand_sequences",
        Gauge,
        "Pending and running sequences, and those refused for overload in the last minute.",
    ),
    Definition("tidegate_accepted_sequences_total", Counter, "Sequences accepted.", ("route",)),
    Definition(
        "tidegate_finished_sequences_total",
        Counter,
        "Accepted sequences that ended: stop, length, aborted, timeout, displaced, error, invalid.",
        ("route", "reason"),
    ),
    Definition("tidegate_requests_total", Counter, "HTTP requests answered.", ("route", "status")),
    Definition(
        "tidegate_rejected_requests_total",
        Counter,
        "HTTP requests answered with an error, by its code.",
        ("route", "status", "reason"),
    ),
    Definition(
        "tidegate_queue_wait_seconds",
        Histogram,
        "From acceptance to the first step in the engine.",
        ("route",),
        _SECONDS,
    ),
    Definition(
        "tidegate_time_to_first_token_seconds",
        Histogram,
        "From acceptance to the first token.",
        ("route",),
        _SECONDS,
    ),
    Definition(
        "tidegate_inter_token_seconds",
        Histogram,
        "Mean time between the tokens of a finished sequence.",
        ("route",),
        _TOKEN_SECONDS,
    ),
    Definition(
        "tidegate_request_duration_seconds",
        Histogram,
        "From the first byte of a request that the engine served to the end of its answer.",
        ("route",),
        _SECONDS,
    ),
    Definition(
        "tidegate_prediction_error_seconds",
        Histogram,
        "Predicted minus actual time to the first token of accepted requests.",
        ("route",),
        _ERROR_SECONDS,
    ),
    Definition("tidegate_phase", Gauge, "1 for the current phase, 0 for the others.", ("phase",)),
    Definition(
        "tidegate_engine_step_age_seconds",
        Gauge,
        "Time since the engine's last step; 0 before the first.",
    ),
    Definition(
        "tidegate_engine_stalled_seconds",
        Gauge,
        "Time for which the engine has had work and made no step; 0 when it moves, or is idle.",
    ),
    Definition(
        "tidegate_in_flight_requests",
        Gauge,
        "HTTP requests for the engine that are not answered yet, those being refused included.",
    ),
    Definition(
        "tidegate_drain_seconds_left",
        Gauge,
        "Time until a drain cuts what is in flight; 0 when there is no drain.",
    ),
    Definition(
        "tidegate_keys_reload_failed",
        Gauge,
        "1 while the keys file is not usable and the old keys are in force.",
    ),
    Definition("tidegate_poll_errors_total", Counter, "Polls of the engine that failed."),
    Definition(
        "tidegate_last_poll_timestamp_seconds", Gauge, "Unix time of the last poll that worked."
    ),
    Definition(
        "tidegate_build_info", Gauge, "Always 1; the versions.", ("version", "vllm_version")
    ),
)


@dataclass(frozen=True)
class Snapshot:
    """The state at one moment. Sequences, tokens, seconds; KV usage from 0 to 1."""

    pending: int = 0
    running: int = 0
    refused: int = 0
    kv_cache_usage: float = 0.0
    pending_tokens: int = 0
    step_age_s: float = 0.0
    stalled_s: float = 0.0
    in_flight: int = 0
    drain_left_s: float = 0.0
    keys_reload_failed: bool = False
    phase: Phase = Phase.STARTING


class _EngineSeries(Collector):
    """The global registry's series, read at each scrape; vllm registers them when it starts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def collect(self) -> Iterable[Metric]:
        return self.registry.collect()


class Metrics:
    """The series of one service. Lives on the event loop."""

    def __init__(
        self, model_name: str, version: str, vllm_version: str, engine: CollectorRegistry = REGISTRY
    ) -> None:
        self.model_name = model_name
        self.registry = CollectorRegistry()
        self.series = {d.name: _build(d, self.registry) for d in DEFINITIONS}
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        self.registry.register(_EngineSeries(engine))
        self._of("tidegate_build_info", version, vllm_version).set(1)
        self._of("tidegate_poll_errors_total").inc(0)
        self.publish(Snapshot())

    def _of(self, name: str, *labels: str) -> Any:
        child = self._children.get((name, labels))
        if child is None:
            child = self.series[name].labels(self.model_name, *labels)
            self._children[name, labels] = child
        return child

    def publish(self, snapshot: Snapshot) -> None:
        """Set the gauges."""
        values: dict[str, float] = {
            "vllm_pending_requests": snapshot.pending,
            "vllm_running_requests": snapshot.running,
            "vllm_kv_cache_usage_percent": 100 * snapshot.kv_cache_usage,
            "vllm_kv_cache_usage_ratio": snapshot.kv_cache_usage,
            "vllm_pending_tokens": snapshot.pending_tokens,
            "tidegate_demand_sequences": snapshot.pending + snapshot.running + snapshot.refused,
            "tidegate_engine_step_age_seconds": snapshot.step_age_s,
            "tidegate_engine_stalled_seconds": snapshot.stalled_s,
            "tidegate_in_flight_requests": snapshot.in_flight,
            "tidegate_drain_seconds_left": snapshot.drain_left_s,
            "tidegate_keys_reload_failed": snapshot.keys_reload_failed,
        }
        for name, value in values.items():
            self._of(name).set(value)
        for phase in Phase:
            self._of("tidegate_phase", phase.value).set(phase is snapshot.phase)

    def polled(self) -> None:
        self._of("tidegate_last_poll_timestamp_seconds").set_to_current_time()

    def poll_failed(self) -> None:
        self._of("tidegate_poll_errors_total").inc()

    def sequences_accepted(self, route: str, sequences: int) -> None:
        self._of("tidegate_accepted_sequences_total", route).inc(sequences)

    def sequences_finished(self, route: str, reason: str, sequences: int) -> None:
        self._of("tidegate_finished_sequences_total", route, reason).inc(sequences)

    def inter_token(self, route: str, seconds: float) -> None:
        self._of("tidegate_inter_token_seconds", route).observe(seconds)

    def prediction_error(self, route: str, seconds: float) -> None:
        self._of("tidegate_prediction_error_seconds", route).observe(seconds)

    def request_finished(self, request: FinishedRequest, code: str | None) -> None:
        """Count a request that is over; `code` is its error's."""
        route, status = request.route, str(request.status)
        self._of("tidegate_requests_total", route, status).inc()
        if code is not None:
            self._of("tidegate_rejected_requests_total", route, status, code).inc()
        times = {
            "tidegate_queue_wait_seconds": request.queue_wait_s,
            "tidegate_time_to_first_token_seconds": request.ttft_s,
            "tidegate_request_duration_seconds": request.duration_s if request.ttft_s else None,
        }
        for name, seconds in times.items():
            if seconds is not None:
                self._of(name, route).observe(seconds)

    def expose(self, accept: str) -> tuple[bytes, str]:
        """All series in the format that the scraper asks for, and its content type."""
        encode: Callable[[Any], bytes]
        encode, content_type = choose_encoder(accept)
        if content_type.startswith("application/openmetrics-text"):
            # Its default escaping makes `vllm_` of `vllm:`, though a colon is legal in a name: a
            # Prometheus that asks for OpenMetrics, as all do, would not find the engine's series.
            encode = partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8)
            content_type = openmetrics.CONTENT_TYPE_LATEST
        return encode(self.registry), content_type


class _Signed(Histogram):
    """One with buckets below 0: it has no sum, and OpenMetrics wants no count without one."""

    def _child_samples(self) -> Iterable[Sample]:
        return [sample for sample in super()._child_samples() if sample.name != "_count"]


def _build(definition: Definition, registry: CollectorRegistry) -> Gauge | Counter | Histogram:
    labels = ("model_name", *definition.labels)
    if definition.buckets is not None:
        kind = _Signed if definition.buckets[0] < 0 else Histogram
        return kind(
            definition.name,
            definition.help,
            labels,
            registry=registry,
            buckets=definition.buckets,
        )
    return definition.kind(definition.name, definition.help, labels, registry=registry)
