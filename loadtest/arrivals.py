"""When requests are to be sent: seconds from the start, drawn ahead from a seed.

A schedule is never rescaled to a rate and never held back: what was drawn is what is intended.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import UsageError

Times: TypeAlias = NDArray[np.float64]


MOST = 10_000_000
"""Requests of one schedule; more would not fit into memory as records."""


def _bounded(rate: float, duration_s: float) -> None:
    if rate * duration_s > MOST:
        raise UsageError(
            f"{rate:g} requests/s for {duration_s:g} s are more than {MOST:,} requests"
        )


def _positive(rate: float) -> float:
    if not (rate > 0 and np.isfinite(rate)):
        raise UsageError(f"a rate must be above 0, not {rate:g}")
    return rate


def constant(rate: float, duration_s: float) -> Times:
    """One request every 1/rate seconds."""
    _bounded(_positive(rate), duration_s)
    return np.arange(0.0, duration_s, 1.0 / rate).astype(np.float64)


def poisson(rate: float, duration_s: float, dice: np.random.Generator) -> Times:
    """Independent arrivals: exponential gaps."""
    return gamma(rate, 1.0, duration_s, dice)


def given(count: int, duration_s: float, dice: np.random.Generator) -> Times:
    """Poisson arrivals of which it is known how many they are."""
    return np.sort(dice.uniform(0.0, duration_s, count))


def gamma(rate: float, cv: float, duration_s: float, dice: np.random.Generator) -> Times:
    """Gamma gaps with a coefficient of variation: 0 is constant, 1 Poisson, above bursty."""
    _positive(rate)
    if cv < 0:
        raise UsageError(f"--cv must not be negative, not {cv:g}")
    if cv == 0:
        return constant(rate, duration_s)
    shape = 1.0 / cv**2
    return _until(duration_s, rate, lambda n: dice.gamma(shape, 1.0 / (rate * shape), n))


def weibull(rate: float, shape: float, duration_s: float, dice: np.random.Generator) -> Times:
    """Weibull gaps, rescaled so that their mean is 1/rate."""
    scale = 1.0 / (_positive(rate) * math.gamma(1.0 + 1.0 / shape))
    return _until(duration_s, rate, lambda n: scale * dice.weibull(shape, n))


def _until(duration_s: float, rate: float, draw: Callable[[int], Times]) -> Times:
    """Add up gaps until the end of the duration; the first arrival is one gap after the start."""
    _bounded(rate, duration_s)
    chunk = max(16, int(rate * duration_s * 1.1))
    times = np.cumsum(draw(chunk))
    while times[-1] < duration_s:
        times = np.concatenate([times, times[-1] + np.cumsum(draw(chunk))])
    return times[times < duration_s]


def bursts(
    rate: float, on_s: float, off_s: float, duration_s: float, dice: np.random.Generator
) -> Times:
    """Poisson arrivals at `rate` while on, none while off, in turn."""
    if on_s <= 0 or off_s < 0:
        raise UsageError("a burst needs a time on above 0 and a time off of at least 0")
    parts, start = [], 0.0
    while start < duration_s:
        parts.append(start + poisson(rate, min(on_s, duration_s - start), dice))
        start += on_s + off_s
    return np.concatenate(parts) if parts else np.empty(0)


def steps(rates: Sequence[float], step_s: float, dice: np.random.Generator) -> Times:
    """Poisson arrivals at each rate in turn, `step_s` seconds each; a rate of 0 is silence."""
    parts = [
        index * step_s + poisson(rate, step_s, dice) for index, rate in enumerate(rates) if rate > 0
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def ramp(first: float, last: float, duration_s: float, dice: np.random.Generator) -> Times:
    """Arrivals of a rate that goes linearly from `first` to `last`: a thinned Poisson process."""
    top = _positive(max(first, last))
    candidates = poisson(top, duration_s, dice)
    rates = first + (last - first) * candidates / duration_s
    return candidates[dice.random(len(candidates)) * top < rates]
