"""Coefficients from records of steps: non-negative least squares on the relative error."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from loadtest.errors import UsageError
from loadtest.simulator.records import Record
from loadtest.simulator.step_time import Box, Coefficients, Work
from loadtest.simulator.text import aligned

NAMES = ("step", "token", "decode", "context", "attention")
OUTLIER = 1.0
"""A step that took twice as long as the others by the fit, or longer, was held up."""
DRAWS = 200
PASSES = 3
FEWEST = 20

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """What was found, and how far to trust it.

    Attributes:
        errors: the standard error of each coefficient, from drawing the records anew.
        median_error: of the records that were kept, relative.
        p90_error: likewise.
        kept: records.
        dropped: that took twice as long as the others say, or longer.
        box: what the records are of.

    """

    coefficients: Coefficients
    errors: Mapping[str, float]
    median_error: float
    p90_error: float
    kept: int
    dropped: int
    box: Box

    def __str__(self) -> str:
        names = ("a step", "× prompt tokens", "× sequences decoding", "× their context", "× X")
        rows = [("term", "µs", "± error", "most seen")]
        mosts = (None, *asdict(self.box.most).values())
        for name, text, most in zip(NAMES, names, mosts, strict=True):
            value, error = getattr(self.coefficients, name), self.errors[name]
            seen = "" if most is None else str(most // 2 if name == "attention" else most)
            rows.append((text, f"{1e6 * value:.4g}", f"{1e6 * error:.2g}", seen))
        return (
            f"{aligned(rows)}\n{self.kept} steps, {self.dropped} outliers left out; relative error "
            f"{self.median_error:.1%} in the median, {self.p90_error:.1%} at p90"
        )


def fit(records: Sequence[Record]) -> Fit:
    """Fit the five terms, without the outliers.

    Raises:
        UsageError: too few records.

    """
    if len(records) < FEWEST:
        raise UsageError(f"{len(records)} steps are too few for a fit: at least {FEWEST}")
    terms, taken = _terms(records), np.array([record.seconds for record in records])
    kept = np.ones(len(taken), dtype=np.bool_)
    for _ in range(PASSES):
        excess = taken / (terms @ _solve(terms[kept], taken[kept]))
        kept = excess < (1 + OUTLIER) * np.median(excess)
    terms, taken = terms[kept], taken[kept]
    found = _solve(terms, taken)
    errors = np.abs(terms @ found / taken - 1)
    return Fit(
        Coefficients(*found.tolist()),
        dict(zip(NAMES, _standard_errors(terms, taken).tolist(), strict=True)),
        float(np.median(errors)),
        float(np.percentile(errors, 90)),
        int(kept.sum()),
        int((~kept).sum()),
        Box.around([record.work for record in records]),
    )


def _terms(records: Sequence[Record]) -> Floats:
    rows = [
        (1, r.work.prefill, r.work.decodes, r.work.context, r.work.attention / 2) for r in records
    ]
    return np.array(rows, dtype=np.float64)


def _solve(terms: Floats, taken: Floats) -> Floats:
    """The error relative to the fit itself: relative to what was measured, slow steps hardly count.

    What was measured is where it begins.
    """
    expected = taken
    for _ in range(PASSES):
        found = _weighted(terms, taken, expected)
        expected = np.maximum(terms @ found, 1e-12)
    return found


def _weighted(terms: Floats, taken: Floats, expected: Floats) -> Floats:
    relative = terms / expected[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    found: Floats = nnls(relative / scale, taken / expected)[0] / scale
    return found


def _standard_errors(terms: Floats, taken: Floats) -> Floats:
    dice = np.random.default_rng(0)
    draws = dice.integers(0, len(taken), (DRAWS, len(taken)))
    errors: Floats = np.std([_solve(terms[draw], taken[draw]) for draw in draws], axis=0)
    return errors


def dump(found: Fit) -> dict[str, Any]:
    """As JSON types."""
    return asdict(found)


def load(path: Path) -> tuple[Coefficients, Box | None]:
    """Coefficients of a file: what `calibrate` wrote, or just an object of them.

    Raises:
        UsageError: it holds none.

    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        given = content.get("coefficients", content)
        box = content.get("box")
        found = Coefficients(**given)
        around = None if box is None else Box(Work(**box["least"]), Work(**box["most"]))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: no coefficients: {error}") from None
    return found, around


def warnings(box: Box | None, most: Work) -> Iterator[str]:
    """What was played outside of what the fit has seen."""
    if box is None:
        return
    for name in box.outside(most):
        seen, played = getattr(box.most, name), getattr(most, name)
        yield f"extrapolated: {name} up to {played}, but the fit has seen at most {seen}"
