"""`scaling`: what an autoscaler makes of a step in the load, by its metrics and its windows."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.figure import Figure

from loadtest import arrivals, options
from loadtest.simulator.autoscaler import Autoscaler, Metric
from loadtest.simulator.cluster import ClusterSettings, Moment, Story, simulate, turns
from loadtest.simulator.door import DoorSettings
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.hpa_behavior import Behavior, Bounds, Policy, Rules
from loadtest.simulator.job import Job
from loadtest.simulator.outcome import Slo
from loadtest.simulator.pods import Start
from loadtest.simulator.step_time import Coefficients
from loadtest.simulator.ticks import ticks
from loadtest.text import aligned

SLOTS, STEP_S, OUTPUT = 32, 0.05, 160
"""A request holds one of 32 slots for 160 steps of 50 ms: a replica serves 4/s."""
LEAD_S = 600.0
SLO = Slo(ttft=5.0)
PENDING, RUNNING = Metric("pending", 5), Metric("running", 24)
PENDING_TOTAL = Metric("pending", 5, "total")
RUNNING_TOTAL = Metric("running", 24, "total")
HEAD = (
    *("autoscaler", "peak", "end", "changes", "GPU-hours", "minutes of backlog"),
    *("TTFT p95, s", "refused", "good"),
)


def tuned(start_s: float) -> Behavior:
    """No more pods while the last ones start, and down slowly."""
    return Behavior(
        up=Rules(0.0, (Policy("Pods", 2, min(1800.0, start_s)),)),
        down=Rules(600.0, (Policy("Pods", 1, 120.0),)),
    )


def scalers(most: int, start_s: float) -> Mapping[str, Autoscaler]:
    """What is compared."""
    defaults, slow = Bounds(1, most, None), Bounds(1, most, tuned(start_s))
    both, totals = (PENDING, RUNNING), (PENDING_TOTAL, RUNNING_TOTAL)
    return {
        "pending, defaults": Autoscaler((PENDING,), defaults),
        "pending, tuned": Autoscaler((PENDING,), slow),
        "pending and running, defaults": Autoscaler(both, defaults),
        "pending and running, tuned": Autoscaler(both, slow),
        "KEDA, pending and running, tuned": Autoscaler(totals, slow),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    for name, default, about in (
        ("--low", 2.0, "requests/s before the step"),
        ("--high", 9.0, "requests/s after it"),
        ("--minutes", 60.0, "after the step"),
        ("--start", 180.0, "of a pod in seconds"),
    ):
        parser.add_argument(
            name, type=options.positive, default=default, metavar="N", help=f"{about}; {default:g}"
        )
    parser.add_argument(
        "--image",
        type=options.amount,
        default=0.0,
        metavar="S",
        help="of the start, until the container runs and shows its gauges; 0",
    )
    parser.add_argument("--most", default=16, type=options.count, metavar="N", help="replicas")
    parser.add_argument("--seeds", default=5, type=options.count, metavar="N")
    parser.add_argument(
        "--door", action="store_true", help="Tidegate's front door, not vLLM's queue without bounds"
    )
    parser.add_argument("--out", type=Path, metavar="PICTURE", help="replicas over time")


def main(arguments: argparse.Namespace) -> int:
    """Print the table."""
    found = {
        name: [Run.of(arguments, scaler, seed) for seed in range(arguments.seeds)]
        for name, scaler in scalers(arguments.most, arguments.start).items()
    }
    print(aligned([HEAD, *(row(name, runs) for name, runs in found.items())]))
    print(
        f"medians of {arguments.seeds} seeds; a backlog is more than 5 pending for a ready pod; "
        f"good: a first token within {SLO.ttft:g} s"
    )
    if arguments.out is not None:
        picture({name: runs[0].moments for name, runs in found.items()}).savefig(
            arguments.out, dpi=120
        )
        print(arguments.out)
    return 0


@dataclass(frozen=True)
class Run:
    """One play, from the step on."""

    story: Story
    moments: Sequence[Moment]
    gpu_hours: float

    @classmethod
    def of(cls, arguments: argparse.Namespace, scaler: Autoscaler, seed: int) -> "Run":
        end_s = LEAD_S + 60 * arguments.minutes
        given = settings(scaler, arguments.image, arguments.start, door=arguments.door)
        jobs = load(arguments.low, arguments.high, end_s, seed)
        story = simulate(given, jobs, end_s)
        after = [moment for moment in story.moments if moment.at_s > LEAD_S]
        lead = max(m.gpu_hours for m in story.moments if m.at_s <= LEAD_S)
        return cls(story, after, story.gpu_hours - lead)

    @property
    def backlog_minutes(self) -> float:
        return sum(m.pending > 5 * m.ready for m in self.moments) / 4

    @property
    def cells(self) -> Iterator[float]:
        """Without the name, in the order of the head."""
        outcome = self.story.outcome
        desired = [moment.desired for moment in self.moments]
        yield from (max(desired), desired[-1], turns(desired), self.gpu_hours)
        yield self.backlog_minutes
        yield outcome.percentile("ttft", 95)
        yield 100 * outcome.refused.total() / len(outcome)
        yield 100 * float(outcome.good(SLO).mean())


def settings(scaler: Autoscaler, image_s: float, start_s: float, *, door: bool) -> ClusterSettings:
    """One replica that is ready, and what it would be scaled by."""
    return ClusterSettings(
        EngineSettings(SLOTS, 2048, 10_000),
        Coefficients(STEP_S, 0, 0, 0, 0),
        DoorSettings() if door else None,
        1,
        scaler,
        Start(image_s, start_s - image_s if start_s > image_s else 0.0),
    )


def load(low: float, high: float, end_s: float, seed: int) -> list[Job]:
    """Poisson arrivals at one rate, then at the other."""
    dice = np.random.default_rng(seed)
    first = arrivals.poisson(low, LEAD_S, dice)
    then = LEAD_S + arrivals.poisson(high, end_s - LEAD_S, dice)
    times = np.concatenate([first, then]).tolist()
    return [Job(number, 100, OUTPUT, ticks(at)) for number, at in enumerate(times)]


def row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    """Medians over the seeds."""
    columns = zip(*(list(run.cells) for run in runs), strict=True)
    peak, end, changes, hours, backlog, ttft, refused, good = map(median, columns)
    return (
        name,
        *(f"{value:g}" for value in (peak, end, changes)),
        *(f"{value:.1f}" for value in (hours, backlog, ttft)),
        *(f"{value:.0f} %" for value in (refused, good)),
    )


def picture(found: Mapping[str, Sequence[Moment]]) -> Figure:
    """Replicas that are asked for and that are ready, and what is pending, over time."""
    figure = Figure(figsize=(10.0, 2.2 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, moments) in zip(panels, found.items(), strict=True):
        minutes = [(moment.at_s - LEAD_S) / 60 for moment in moments]
        axes.step(minutes, [m.desired for m in moments], where="post", label="asked for")
        axes.step(minutes, [m.ready for m in moments], where="post", ls="--", label="ready")
        axes.set_title(name, fontsize="medium")
        axes.set(ylabel="replicas", ylim=(0, None))
        pending = axes.twinx()
        pending.plot(minutes, [m.pending for m in moments], color="gray", lw=0.8)
        pending.set(ylabel="pending", ylim=(0, None))
    panels[0].legend(loc="upper right")
    panels[-1].set(xlabel="minutes after the step")
    return figure
