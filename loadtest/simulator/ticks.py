"""Time in whole femtoseconds: a stretch of steps takes exactly as long as its steps added up."""

from typing import Final, TypeAlias

Ticks: TypeAlias = int

PER_SECOND: Final = 10**15


def ticks(seconds: float) -> Ticks:
    """The nearest whole number of ticks."""
    return round(seconds * PER_SECOND)


def seconds(time: Ticks) -> float:
    """As a float."""
    return time / PER_SECOND
