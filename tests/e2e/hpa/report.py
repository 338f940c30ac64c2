"""A run's results: a table for people, JSON for machines, a picture for both."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tests.e2e.hpa.scenario import Scenario
from tests.e2e.hpa.verdict import Figures, Run

BIN_S = 5.0


def save(
    scenario: Scenario, run: Run, found: Figures, judged: Sequence[tuple[str, bool]], results: Path
) -> None:
    """`NAME.json` and `NAME.png`."""
    content = {
        "scenario": scenario.name,
        "title": scenario.title,
        "phases": [dataclasses.asdict(phase) for phase in scenario.phases],
        "figures": dataclasses.asdict(found),
        "criteria": [{"says": says, "holds": holds} for says, holds in judged],
        **recorded(run),
    }
    path = results / f"{scenario.name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    drawn(scenario, run).savefig(results / f"{scenario.name}.png", dpi=110)


def recorded(run: Run) -> dict[str, Any]:
    """What was seen; seconds from the begin of the load."""
    return {
        "samples": [
            {**dataclasses.asdict(s), "at": round(s.at - run.began, 1)} for s in run.samples
        ],
        "pods": [_life(run, life) for life in run.lives],
        "series": {
            name: [(round(at - run.began, 1), value) for at, value in points]
            for name, points in run.series.items()
        },
        "requests": [
            {
                "at": round(at - run.began, 2),
                "outcome": record.outcome,
                "status": record.status,
                "ttft": record.ttft,
                "tpot": record.tpot,
                "detail": record.detail,
            }
            for record, at in zip(run.records, run.sent, strict=True)
        ],
    }


def _life(run: Run, life: Any) -> dict[str, Any]:
    times = {"created", "started", "ready", "deleted", "ended"}
    return {
        name: round(value - run.began, 1) if name in times and value is not None else value
        for name, value in dataclasses.asdict(life).items()
    }


def drawn(scenario: Scenario, run: Run) -> Figure:
    """Arrivals and what did not complete; pending and running; replicas; the machine."""
    figure = Figure(figsize=(10, 10), layout="constrained")
    figure.suptitle(scenario.title)
    panels = figure.subplots(4, 1, sharex=True)
    _arrivals(panels[0], run)
    for name, points in run.series.items():
        shown = {"demand"} if "slo" in scenario.overlay else {"pending"}
        if name in shown | {"running"}:
            panels[1].plot([at - run.began for at, _ in points], [v for _, v in points], label=name)
    panels[1].set(ylabel="sequences, all pods")
    times = [s.at - run.began for s in run.samples]
    panels[2].step(times, [s.desired for s in run.samples], where="post", label="desired")
    panels[2].step(times, [s.ready for s in run.samples], where="post", label="ready")
    panels[2].set(ylabel="replicas")
    panels[3].plot(times, [s.cpu for s in run.samples], linewidth=0.8, label="CPU")
    starting = [s.starting for s in run.samples]
    panels[3].fill_between(times, 0, 100, where=starting, alpha=0.2, label="a pod starts")
    panels[3].set(ylabel="machine, %", xlabel="time, s")
    for axes in panels:
        axes.axvspan(run.steady - run.began, run.steady_end - run.began, color="0.95", zorder=0)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper right", fontsize="small")
    return figure


def _arrivals(axes: Any, run: Run) -> None:
    sent = np.array(run.sent) - run.began
    edges = np.arange(0.0, sent.max() + 2 * BIN_S, BIN_S)
    lost = np.array([not record.ok for record in run.records])
    for times, label in ((sent, "arrivals"), (sent[lost], "of them failed or refused")):
        axes.stairs(np.histogram(times, edges)[0] / BIN_S, edges, label=label)
    axes.set(ylabel="requests/s")


HEAD = (
    "run",
    "requests",
    "complete",
    "refused",
    "failed",
    "direction changes",
    "replicas",
    "step",
    "CPU",
)


def row(scenario: Scenario, found: Figures) -> tuple[str, ...]:
    """Of the table; replicas: the most that were wanted, at the end of the constant load, last."""
    total = sum(found.outcomes.values())
    return (
        scenario.name,
        str(total),
        str(total - found.failed),
        str(found.rejected),
        str(found.failed - found.rejected),
        str(found.changes),
        f"{found.wanted}, {found.settled}, {found.last}",
        f"{1000 * found.pace:.0f} ms",
        f"{found.cpu:.0f} %",
    )


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """As Markdown, which is readable as it is."""
    lines = [HEAD, tuple("---" for _ in HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
