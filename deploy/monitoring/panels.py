"""The panels of the dashboard, row by row: the one list of what is shown."""

import enum
from dataclasses import dataclass

from deploy.monitoring.queries import (
    PODS,
    PROCESSES,
    WINDOW,
    Query,
    autoscaler,
    deployment,
    each,
    quantiles,
    rate,
)


class Source(enum.StrEnum):
    """Who exports a panel's series."""

    SERVICE = "Tidegate"
    CLUSTER = "kube-state-metrics"
    NODE = "kubelet (cAdvisor)"


@dataclass(frozen=True)
class Panel:
    """One graph. The unit is one of Grafana's ids."""

    title: str
    unit: str
    meaning: str
    queries: tuple[Query, ...]
    source: Source = Source.SERVICE


@dataclass(frozen=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


OVERVIEW = Row(
    "Overview",
    (
        Panel(
            "Phase",
            "short",
            "Pods by what they are doing: starting, ready, draining, stopped, failed.",
            (Query(f"sum by (phase) (tidegate_phase{{{PODS}}})", "{{phase}}"),),
        ),
        Panel(
            "Pending",
            "short",
            "Accepted sequences that the engine is not running yet.",
            each("vllm_pending_requests"),
        ),
        Panel(
            "Running",
            "short",
            "Sequences in the continuous batch.",
            each("vllm_running_requests"),
        ),
        Panel(
            "KV cache in use",
            "percentunit",
            "At 100 % sequences are preempted: thrown out of the batch and begun again.",
            each("vllm_kv_cache_usage_ratio"),
        ),
        Panel(
            "Demand and capacity",
            "short",
            "All pods together: what is in them, with what they refused for overload in the last "
            "minute; and the most that each ran at once in the last hour.",
            (
                Query(f"sum(tidegate_demand_sequences{{{PODS}}})", "demand"),
                Query(
                    f"sum(vllm_pending_requests{{{PODS}}} + vllm_running_requests{{{PODS}}})",
                    "accepted",
                ),
                Query(
                    f"sum(max_over_time(vllm_running_requests{{{PODS}}}[1h]))",
                    "most that ran",
                ),
            ),
        ),
        Panel(
            "In flight",
            "short",
            "HTTP requests that are not answered yet, those being refused included.",
            each("tidegate_in_flight_requests"),
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Queue wait",
            "s",
            "From acceptance to the first step in the engine.",
            quantiles("tidegate_queue_wait_seconds"),
        ),
        Panel(
            "Time to first token",
            "s",
            "From acceptance to the first token.",
            quantiles("tidegate_time_to_first_token_seconds"),
        ),
        Panel(
            "Time between tokens",
            "s",
            "The mean of each sequence that finished.",
            quantiles("tidegate_inter_token_seconds"),
        ),
        Panel(
            "Whole request",
            "s",
            "From the first byte of a request that was served to the end of its answer.",
            quantiles("tidegate_request_duration_seconds"),
        ),
    ),
)

FRONT_DOOR = Row(
    "Front door",
    (
        Panel(
            "Accepted",
            "reqps",
            "Sequences a second, by route.",
            (rate("tidegate_accepted_sequences_total", "route"),),
        ),
        Panel(
            "Finished",
            "reqps",
            "Sequences a second, by how they ended.",
            (rate("tidegate_finished_sequences_total", "reason"),),
        ),
        Panel(
            "Rejected",
            "reqps",
            "Requests a second that got an error, by its code; with status 200, in their stream.",
            (rate("tidegate_rejected_requests_total", "status, reason", "{{status}} {{reason}}"),),
        ),
        Panel(
            "Answered",
            "reqps",
            "HTTP requests a second, by status; 499 is a client that left.",
            (rate("tidegate_requests_total", "status"),),
        ),
        Panel(
            "Prediction error",
            "s",
            "Predicted minus actual time to the first token: below 0, it came later.",
            quantiles("tidegate_prediction_error_seconds", 0.05, 0.5, 0.95),
        ),
    ),
)

ENGINE = Row(
    "Engine",
    (
        Panel(
            "Tokens",
            "short",
            "Tokens a second, all pods together.",
            (
                Query(f"sum(rate(vllm:generation_tokens_total{{{PODS}}}[{WINDOW}]))", "output"),
                Query(f"sum(rate(vllm:prompt_tokens_total{{{PODS}}}[{WINDOW}]))", "prompt"),
            ),
        ),
        Panel(
            "Preemptions",
            "short",
            "Sequences a second that were thrown out of the batch for want of KV cache.",
            (rate("vllm:num_preemptions_total", "pod"),),
        ),
        Panel(
            "Waiting in the engine",
            "short",
            "Of the pending, those that were handed over already: few, the others wait in order.",
            (Query(f"sum by (pod) (vllm:num_requests_waiting{{{PODS}}})", "{{pod}}"),),
        ),
        Panel(
            "Without a step",
            "s",
            "Time without a step while the engine has work; from 30 s on the pod is not ready.",
            each("tidegate_engine_stalled_seconds"),
        ),
        Panel(
            "Since the last step",
            "s",
            "Whether there is work or not.",
            each("tidegate_engine_step_age_seconds"),
        ),
        Panel(
            "Prompt tokens waiting",
            "short",
            "Of the pending sequences.",
            each("vllm_pending_tokens"),
        ),
    ),
)

AUTOSCALING = Row(
    "Autoscaling",
    (
        Panel(
            "Replicas",
            "short",
            "What the autoscaler wants, may want, and has.",
            (
                autoscaler("kube_horizontalpodautoscaler_status_desired_replicas", "desired"),
                autoscaler("kube_horizontalpodautoscaler_spec_max_replicas", "maximum"),
                deployment("kube_deployment_status_replicas_ready", "ready"),
            ),
            Source.CLUSTER,
        ),
        Panel(
            "Pending and running, per pod",
            "short",
            "What the HPA compares with its targets.",
            (
                Query(
                    f"avg by (model_name) (vllm_pending_requests{{{PODS}}})",
                    "{{model_name}} pending",
                ),
                Query(
                    f"avg by (model_name) (vllm_running_requests{{{PODS}}})",
                    "{{model_name}} running",
                ),
            ),
        ),
        Panel(
            "The autoscaler's metrics and targets",
            "short",
            "By the names that the HPA has for them; KEDA numbers its queries.",
            (
                autoscaler(
                    "kube_horizontalpodautoscaler_status_target_metric", "now", "metric_name"
                ),
                autoscaler(
                    "kube_horizontalpodautoscaler_spec_target_metric", "target", "metric_name"
                ),
            ),
            Source.CLUSTER,
        ),
    ),
)

PROCESS = Row(
    "Process",
    (
        Panel(
            "CPU of the front end",
            "short",
            "Cores. It makes all streams in one process: at 1 it is the bottleneck.",
            (Query(f"rate(process_cpu_seconds_total{{{PROCESSES}}}[{WINDOW}])", "{{pod}}"),),
        ),
        Panel(
            "Memory of the front end",
            "bytes",
            "Resident.",
            (Query(f"process_resident_memory_bytes{{{PROCESSES}}}", "{{pod}}"),),
        ),
        Panel(
            "Open files of the front end",
            "short",
            "Connections for the most part.",
            (Query(f"process_open_fds{{{PROCESSES}}}", "{{pod}}"),),
        ),
        Panel(
            "CPU of the pod",
            "short",
            "Cores, the engine's processes included.",
            (
                Query(
                    "sum by (pod) "
                    f"(rate(container_cpu_usage_seconds_total{{{PROCESSES}}}[{WINDOW}]))",
                    "{{pod}}",
                ),
            ),
            Source.NODE,
        ),
        Panel(
            "Memory of the pod",
            "bytes",
            "What counts against its limit; shared memory included.",
            (
                Query(
                    f"sum by (pod) (container_memory_working_set_bytes{{{PROCESSES}}})", "{{pod}}"
                ),
            ),
            Source.NODE,
        ),
    ),
)

ROWS = (OVERVIEW, LATENCY, FRONT_DOOR, ENGINE, AUTOSCALING, PROCESS)
