"""`simulate`: one configuration on a load, in a table and a picture."""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from loadtest import options
from loadtest.simulator import scenario
from loadtest.simulator.autoscaler import Autoscaler, Gauge, Metric
from loadtest.simulator.cluster import Cluster, ClusterSettings, Story, accepted
from loadtest.simulator.hpa_behavior import Bounds
from loadtest.simulator.outcome import Outcome, Slo
from loadtest.simulator.scaling import tuned
from loadtest.text import aligned

BINS = 200
TARGETS: Mapping[Gauge, str] = {
    "pending": "sequences",
    "running": "sequences",
    "demand": "sequences",
    "kv": "per cent of the KV cache",
}
"""What an autoscaler may go by, and in which unit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    scenario.add_load(parser)
    scenario.add_engine(parser)
    scenario.add_slo(parser)
    parser.add_argument("--max-num-seqs", type=options.count, default=256, metavar="N")
    parser.add_argument("--max-num-batched-tokens", type=options.count, default=2048, metavar="N")
    parser.add_argument("--replicas", type=options.count, default=1, metavar="N", help="at first")
    parser.add_argument("--routing", choices=("least_loaded", "round_robin"))
    group = parser.add_argument_group("the autoscaler; none without a target")
    for name, unit in TARGETS.items():
        group.add_argument(
            f"--{name}-target", type=options.positive, metavar="N", help=f"{unit}, of a pod"
        )
    group.add_argument("--least", type=options.count, default=1, metavar="N", help="replicas")
    group.add_argument("--most", type=options.count, default=8, metavar="N", help="replicas")
    group.add_argument("--behavior", choices=("defaults", "tuned"), default="tuned")
    group.add_argument("--keda", action="store_true", help="metrics of the whole, not of pods")
    scenario.add_delays(parser)
    parser.add_argument("--out", type=Path, metavar="PICTURE")
    parser.set_defaults(routing="least_loaded")


def main(arguments: argparse.Namespace) -> int:
    """Play, and print what came of it."""
    load = scenario.load(arguments)
    one = scenario.replica(arguments)
    engine = one.engine(arguments.max_num_seqs, arguments.max_num_batched_tokens)
    scenario.check(load, engine)
    given = ClusterSettings(
        engine,
        one.coefficients,
        one.door,
        max(arguments.replicas, arguments.least),
        _autoscaler(arguments, one.start.total_s),
        one.start,
        routing=arguments.routing,
    )
    begin = time.process_time()
    cluster = Cluster(given)
    story = cluster.play(accepted(load.jobs(), one.coefficients), load.end_s)
    took_s = time.process_time() - begin
    limits = scenario.slo(arguments)
    print(summary(story, limits, load.end_s))
    for warning in scenario.warnings(one.box, cluster.most):
        print(warning)
    print(
        f"{len(load.at)} requests simulated in {took_s:.1f} s of CPU: {len(load.at) / took_s:.0f}/s"
    )
    if arguments.out is not None:
        picture(story, limits).savefig(arguments.out, dpi=120)
        print(arguments.out)
    return 0


def _autoscaler(arguments: argparse.Namespace, start_s: float) -> Autoscaler | None:
    metrics = tuple(
        Metric(gauge, target, "total" if arguments.keda else "pods")
        for gauge in TARGETS
        if (target := getattr(arguments, f"{gauge}_target")) is not None
    )
    behavior = tuned(start_s) if arguments.behavior == "tuned" else None
    bounds = Bounds(arguments.least, arguments.most, behavior)
    return Autoscaler(metrics, bounds, **scenario.delays(arguments)) if metrics else None


def summary(story: Story, limits: Slo, end_s: float) -> str:
    """What became of the requests, and what it took."""
    outcome = story.outcome
    refused = ", ".join(f"{name} {count}" for name, count in sorted(outcome.refused.items()))
    rows = [
        ("requests", str(len(outcome))),
        ("served", f"{outcome.served}"),
        ("refused", refused or "0"),
        ("good", f"{outcome.good(limits).mean():.1%}"),
        ("output tokens/s", f"{outcome.tokens / end_s:.0f}"),
        ("preemptions", str(outcome.preemptions)),
        *(_percentiles(outcome, name) for name in ("ttft", "tpot", "e2e")),
        ("GPU-hours", f"{story.gpu_hours:.2f}"),
    ]
    if story.moments:
        mean = np.mean([moment.desired for moment in story.moments])
        rows.append(("replicas", f"mean {mean:.1f}, peak {story.peak}, turns {story.changes}"))
    return aligned(rows)


def _percentiles(outcome: Outcome, name: str) -> tuple[str, str]:
    values = [outcome.percentile(name, q) for q in (50, 95, 99)]
    return f"{name.upper()} p50 / p95 / p99, s", " / ".join(f"{value:.3g}" for value in values)


def picture(story: Story, limits: Slo) -> Figure:
    """Arrivals and good requests, replicas, pending, GPU-hours, over time."""
    figure = Figure(figsize=(10.0, 9.0), layout="constrained")
    rates, replicas, pending, hours = figure.subplots(4, 1, sharex=True)
    at = story.outcome.column("at") / 60
    edges = np.linspace(0, max(at.max(), 1e-9), BINS + 1)
    width_s = 60 * (edges[1] - edges[0])
    for name, chosen in (("arrivals", at), ("good", at[story.outcome.good(limits)])):
        rates.stairs(np.histogram(chosen, edges)[0] / width_s, edges, label=name, baseline=None)
    minutes = [moment.at_s / 60 for moment in story.moments]
    for name in ("desired", "ready"):
        values = [getattr(moment, name) for moment in story.moments]
        replicas.step(minutes, values, where="post", label=name)
    for name in ("pending", "running"):
        pending.plot(minutes, [getattr(m, name) for m in story.moments], lw=0.9, label=name)
    hours.plot(minutes, [moment.gpu_hours for moment in story.moments])
    labels = ("requests/s", "replicas", "sequences", "GPU-hours")
    for axes, label in zip((rates, replicas, pending, hours), labels, strict=True):
        axes.set(ylabel=label, ylim=(0, None))
        if axes is not hours:
            axes.legend(loc="upper left")
    hours.set(xlabel="minutes")
    return figure
