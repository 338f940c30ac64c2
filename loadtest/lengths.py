"""How many tokens a request has: drawn ahead, like its time."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import UsageError

Lengths: TypeAlias = NDArray[np.int64]
_Draw: TypeAlias = Callable[[Sequence[float], int, np.random.Generator], NDArray[np.float64]]


def draw(spec: str, count: int, dice: np.random.Generator) -> Lengths:
    """`count` lengths of at least 1 token.

    Args:
        spec: `fixed:N`, `uniform:LOW:HIGH` (both may occur) or `exponential:MEAN`.
        count: how many.
        dice: where they come from.

    Raises:
        UsageError: the spec is none of these, or a length is below 1.

    """
    kind, _, rest = spec.partition(":")
    try:
        numbers = [float(number) for number in rest.split(":")]
        values = _KINDS[kind](numbers, count, dice)
    except (KeyError, ValueError, IndexError):
        raise UsageError(
            f"lengths {spec!r}: use fixed:N, uniform:LOW:HIGH or exponential:MEAN"
        ) from None
    if min(numbers) < 1:
        raise UsageError(f"lengths {spec!r}: a length is at least 1 token")
    whole: Lengths = np.maximum(1, np.rint(values)).astype(np.int64)
    return whole


def _fixed(n: Sequence[float], count: int, dice: np.random.Generator) -> NDArray[np.float64]:
    (value,) = n
    return np.full(count, value)


def _uniform(n: Sequence[float], count: int, dice: np.random.Generator) -> NDArray[np.float64]:
    low, high = n
    return dice.integers(int(low), int(high) + 1, count).astype(float)


def _exponential(n: Sequence[float], count: int, dice: np.random.Generator) -> NDArray[np.float64]:
    (mean,) = n
    return dice.exponential(mean, count)


_KINDS: dict[str, _Draw] = {"fixed": _fixed, "uniform": _uniform, "exponential": _exponential}
