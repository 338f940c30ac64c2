"""Runs that were predicted and measured, how far off a prediction may be, and the table of both."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadtest.simulator.replay import Figures
from loadtest.text import aligned

BOUNDS: Final[Mapping[str, float]] = {
    "ttft": 0.20,
    "itl": 0.10,
    "e2e": 0.10,
    "tokens_per_s": 0.05,
}
"""How far off a prediction may be."""
FACTOR: Final = 3.0
"""Preemptions of the same order: up to so many times more or fewer; below `FEW`, anything."""
FEW: Final = 10


@dataclass(frozen=True)
class Run:
    """One load: what was predicted and what was measured.

    Attributes:
        rate: requests per second.
        at_pace: predicted again with all terms scaled so that the time of the steps is right: what
            is off here is the scheduler's, what is off above only is the terms'.
        steps: the time that the calibration gives to the steps that were made, over theirs.
        waited: share of the time for which the engine had no core, which others had.
        late: how late requests were handed over, p99 in seconds.
        outside: what was more than the calibration has seen.

    """

    shape: str
    load: float
    rate: float
    requests: int
    predicted: Figures
    at_pace: Figures
    measured: Figures
    steps: float
    waited: float
    late: float
    outside: Sequence[str]


NAMES: Final = (*BOUNDS, "preemptions")
_LABELS: Final[Mapping[str, tuple[str, Callable[[float], float]]]] = {
    "ttft": ("TTFT p50, ms", lambda seconds: 1000 * seconds),
    "itl": ("ITL p50, ms", lambda seconds: 1000 * seconds),
    "e2e": ("E2E p50, ms", lambda seconds: 1000 * seconds),
    "tokens_per_s": ("tokens/s", float),
    "preemptions": ("preemptions", float),
}


def within(name: str, run: Run) -> bool:
    """Whether a figure of a run was predicted as well as it has to be."""
    predicted, measured = (float(getattr(of, name)) for of in (run.predicted, run.measured))
    if name in BOUNDS:
        return bool(abs(predicted / measured - 1) <= BOUNDS[name]) or math.isnan(measured)
    few = max(predicted, measured) < FEW
    return few or 1 / FACTOR <= (predicted + 1) / (measured + 1) <= FACTOR


def progress(run: Run) -> str:
    """A line for each as it is done."""
    missed = [name for name in NAMES if not within(name, run)]
    return f"{run.shape}, {run.load:.0%}: {'missed ' + ', '.join(missed) if missed else 'holds'}"


def render(runs: Sequence[Run]) -> str:
    """All runs, and how many predictions hold."""
    rows: list[Sequence[str]] = [
        ("lengths, load", "figure", "predicted", "measured", "ratio", "at its pace", ""),
        *(row for run in runs for row in _rows(run)),
    ]
    return "\n".join([aligned(rows), "", *_notes(runs)])


def _rows(run: Run) -> Iterator[Sequence[str]]:
    title = f"{run.shape}, {run.load:.0%} ({run.rate:.3g}/s, n = {run.requests})"
    for name in NAMES:
        label, scaled = _LABELS[name]
        predicted, measured = (scaled(getattr(of, name)) for of in (run.predicted, run.measured))
        ratio = predicted / measured if measured else math.nan
        paced = scaled(getattr(run.at_pace, name)) / measured if measured else math.nan
        verdict = "" if within(name, run) else "MISS"
        numbers = (f"{predicted:.4g}", f"{measured:.4g}", f"{ratio:.3f}", f"{paced:.3f}")
        yield title, label, *numbers, verdict
        title = ""
    yield "", "time of its steps", "", "", f"{run.steps:.3f}", "", f"waited {run.waited:.1%}"


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    for name in NAMES:
        held = sum(within(name, run) for run in runs)
        paced = sum(within(name, replace(run, predicted=run.at_pace)) for run in runs)
        bound = f"within {BOUNDS[name]:.0%}" if name in BOUNDS else "of the same order"
        yield f"{_LABELS[name][0]}: {held} of {len(runs)} {bound}; {paced} at its pace"
    outside = sorted({name for run in runs for name in run.outside})
    if outside:
        yield f"beyond what was calibrated: {', '.join(outside)}"
    late = 1000 * max(run.late for run in runs)
    yield f"requests were handed over late by up to {late:.1f} ms (p99)"
