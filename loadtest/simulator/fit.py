"""The terms of a step's time from observed steps, with intervals and errors."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import theilslopes

from loadtest.errors import UsageError
from loadtest.simulator.records import Observation
from loadtest.simulator.step_time import Box, Work

Floats: TypeAlias = NDArray[np.float64]
TERMS: Final = ("step", "prompt", "token", "decode", "context", "attention")
DRAWS: Final = 200
BLOCK: Final = 50
"""Steps that are drawn together where they are of no grid: neighbours met one load."""
ROUNDS: Final = 4
STRANGE: Final = 6.0
"""Robust standard deviations from which a step was one in which something else happened."""
AT_LEAST: Final = 0.2
"""How far off it must be besides, in logarithms: fits that are nearly exact throw nothing away."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Errors:
    """Of predicted steps, relative to what they took.

    Attributes:
        median: of the absolute error.
        p90: the same.
        total: of the sum of all.
        steps: how many.

    """

    median: float
    p90: float
    total: float
    steps: int


@dataclass(frozen=True)
class Fit:
    """Terms in seconds, the box of what was seen, and how well they fit.

    Attributes:
        strange: share of the steps that were left out because something else happened in them.
        strange_time: their share of the time.

    """

    terms: dict[str, Estimate]
    box: Box
    errors: Errors
    strange: float
    strange_time: float

    @property
    def values(self) -> Floats:
        return np.array([self.terms[name].value for name in TERMS])


def fit(observed: Sequence[Observation], seed: int = 0) -> Fit:
    """Non-negative least squares on the relative error.

    Each cell of a grid counts the same, however many steps it has. The error is relative to what
    is predicted, not to what was measured, or slow steps would count less than fast ones and the
    sum of all predictions would be too small.

    Raises:
        UsageError: there are too few to tell anything.

    """
    if len(observed) < 2 * len(TERMS):
        raise UsageError(f"{len(observed)} steps are too few to fit {len(TERMS)} terms")
    rows, seconds, weights = _design(observed)
    values, kept = _solve(rows, seconds, weights)
    terms = _intervals(
        values, rows[kept], seconds[kept], weights[kept], _groups(observed)[kept], seed
    )
    found = Fit(
        terms=terms,
        box=Box.around([one.work for one in observed]),
        errors=_errors(rows[kept] @ values, seconds[kept]),
        strange=1 - float(kept.mean()),
        strange_time=1 - float(seconds[kept].sum() / seconds.sum()),
    )
    if found.terms["step"].value + found.terms["decode"].value <= 0:
        raise UsageError("these steps do not tell what a step costs by itself")
    return found


def errors(values: Floats, observed: Sequence[Observation]) -> Errors:
    """Of a fit on steps that it has not seen; strange ones are among them."""
    rows, seconds, _ = _design(observed)
    return _errors(rows @ values, seconds)


def row(work: Work) -> tuple[float, ...]:
    """What the terms are multiplied by."""
    return (1.0, work.prefill > 0, work.prefill, work.decodes, work.context, work.attention / 2)


def _errors(predicted: Floats, seconds: Floats) -> Errors:
    off = np.abs(predicted / seconds - 1)
    total = float(predicted.sum() / seconds.sum() - 1)
    return Errors(float(np.median(off)), float(np.percentile(off, 90)), total, len(off))


def _design(observed: Sequence[Observation]) -> tuple[Floats, Floats, Floats]:
    rows = np.array([row(one.work) for one in observed], dtype=np.float64)
    seconds = np.array([one.seconds for one in observed])
    sizes = Counter(one.cell for one in observed)
    weights = [1.0 if one.cell is None else sizes[one.cell] ** -0.5 for one in observed]
    return rows, seconds, np.array(weights)


def _groups(observed: Sequence[Observation]) -> NDArray[np.int64]:
    """Steps that are drawn together: of a cell, or neighbours."""
    return np.array(
        [
            -1 - index // BLOCK if one.cell is None else one.cell
            for index, one in enumerate(observed)
        ]
    )


def _solve(rows: Floats, seconds: Floats, weights: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The terms, and which steps they were fitted to."""
    kept = np.ones(len(rows), dtype=bool)
    expected = seconds
    for _ in range(ROUNDS):
        values = _least(rows[kept], seconds[kept], weights[kept] / expected[kept])
        expected = np.maximum(rows @ values, 1e-9)
        off = np.log(seconds / expected)
        spread = 1.4826 * float(np.median(np.abs(off - np.median(off))))
        kept = np.abs(off - np.median(off)) <= max(STRANGE * spread, AT_LEAST)
    return values, kept


def _least(rows: Floats, seconds: Floats, weights: Floats) -> Floats:
    scales = np.maximum(rows.max(axis=0), 1e-12)
    found, _ = nnls(rows / scales * weights[:, None], seconds * weights)
    values: Floats = found / scales
    return values


def _intervals(
    values: Floats,
    rows: Floats,
    seconds: Floats,
    weights: Floats,
    groups: NDArray[np.int64],
    seed: int,
) -> dict[str, Estimate]:
    """Bootstrap: whole groups are drawn."""
    expected = weights / np.maximum(rows @ values, 1e-9)
    drawn = np.array([_least(rows[i], seconds[i], expected[i]) for i in _draws(groups, seed)])
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    ends = zip(values.tolist(), low.tolist(), high.tolist(), strict=True)
    return {name: Estimate(*end) for name, end in zip(TERMS, ends, strict=True)}


def _draws(groups: NDArray[np.int64], seed: int) -> Iterator[NDArray[np.int64]]:
    dice = np.random.default_rng(seed)
    members = [np.flatnonzero(groups == one) for one in np.unique(groups)]
    for _ in range(DRAWS):
        chosen = dice.integers(0, len(members), len(members))
        yield np.concatenate([members[one] for one in chosen])


def line(x: Floats, y: Floats) -> tuple[float, float]:
    """y = a + b·x with a, b ≥ 0: the median slope, and the median of what it leaves (Theil-Sen)."""
    b = max(0.0, float(theilslopes(y, x).slope))
    return max(0.0, float(np.median(y - b * x))), b
