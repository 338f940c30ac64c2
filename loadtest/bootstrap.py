"""How sure a number is: bootstrap intervals, the same for the same seed.

Requests of one run are not independent: those that met the same queue were slow together. So blocks
of neighbours are drawn, not single values: the moving-block bootstrap of Künsch (1989), on a circle
(Politis and Romano, 1992) so that the ends of a run count as much as its middle. A block is a
twentieth of the series: 10 to 30 batches are what Schmeiser (1982) found to suffice for the output
of queues, whatever its length.

Simulated M/M/1 queues of 5000 requests had their true median in 92 % of the 95 % intervals at a
load of 0.8 and in 86 % at 0.9 (single requests: 32 % and 16 %), but their p99 only in 61 % and
26 %: one run near saturation says little of its tail. Nor does an interval hold what differs from
one run to the next. Repeat the runs and use `paired_interval` for that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Floats], Floats]
"""Of the last axis: (draws, n) to (draws,)."""

BLOCKS = 20
_AT_ONCE = 2_000_000  # values held at a time


def mean(samples: Floats) -> Floats:
    """A statistic."""
    return np.asarray(samples.mean(axis=-1))


def percentile(percent: float) -> Statistic:
    """The statistic that is this linear percentile."""
    return lambda samples: np.asarray(np.percentile(samples, percent, axis=-1))


median = percentile(50)


def interval(
    values: Sequence[float] | Floats,
    statistic: Statistic,
    seed: int = 0,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Of a statistic of values in order of time; (nan, nan) where there are none."""
    return _between(_drawn(values, statistic, np.random.default_rng(seed), draws), level)


def ratio_interval(
    a: Sequence[float] | Floats,
    b: Sequence[float] | Floats,
    statistic: Statistic,
    seed: int = 0,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Of statistic(a) / statistic(b), independent series each in order of time.

    Its upper end is infinite where b's statistic may be 0; (nan, nan) where a's may be 0 as well,
    or a series is empty.
    """
    dice = np.random.default_rng(seed)
    above, below = (_drawn(values, statistic, dice, draws) for values in (a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        return _between(above / below, level)


def paired_interval(
    pairs: Sequence[tuple[float, float]],
    statistic: Statistic = median,
    seed: int = 0,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Of the statistic of a / b over independent pairs (a, b).

    No interval of a few pairs is sure: the widest for a median, from the least ratio to the
    greatest, misses it once in 2^(n − 1) times, so that 95 % takes six pairs.
    """
    ratios = np.array([a / b for a, b in pairs])
    return _between(_drawn(ratios, statistic, np.random.default_rng(seed), draws, 1), level)


@dataclass(frozen=True)
class Paired:
    """What a / b was in each pair that has both numbers, b not 0: the median and its 95 % interval.

    Without such a pair there is neither.
    """

    ratios: tuple[float, ...]
    median: float | None
    interval: tuple[float, float] | None


def paired(pairs: Sequence[tuple[float | None, float | None]]) -> Paired:
    """Over pairs (a, b) that are independent of each other."""
    whole = [(a, b) for a, b in pairs if a is not None and b]
    if not whole:
        return Paired((), None, None)
    ratios = tuple(a / b for a, b in whole)
    return Paired(ratios, float(np.median(ratios)), paired_interval(whole))


def _drawn(
    values: Sequence[float] | Floats,
    statistic: Statistic,
    dice: np.random.Generator,
    draws: int,
    block: int | None = None,
) -> Floats:
    """The statistic of each of `draws` resampled series: (draws,)."""
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n == 0:
        return np.full(draws, np.nan)
    length = block or -(-n // BLOCKS)
    rows = max(1, _AT_ONCE // n)
    return np.concatenate(
        [
            statistic(data[_blocks(n, length, min(rows, draws - done), dice)])
            for done in range(0, draws, rows)
        ]
    )


def _blocks(n: int, length: int, draws: int, dice: np.random.Generator) -> NDArray[np.intp]:
    """Indices of blocks on a circle of n: (draws, n)."""
    starts = dice.integers(0, n, (draws, -(-n // length), 1))
    return ((starts + np.arange(length)) % n).reshape(draws, -1)[:, :n]


def _between(drawn: Floats, level: float) -> tuple[float, float]:
    tails = [50 * (1 - level), 50 * (1 + level)]
    # No value between two draws: one of them may be infinite.
    low, high = np.percentile(drawn, tails, method="inverted_cdf")
    return float(low), float(high)
