"""How many tokens a sequence still has to come, learned from those that ended."""

from bisect import bisect_right
from collections import deque
from itertools import accumulate

REMEMBERED = 256
ASSUMED = 128.0
"""Tokens, while nothing has ended yet and the request names no limit."""


class Lengths:
    """The lengths of the latest sequences, and how many of them ran to their limit.

    A sequence that runs to its limit has exactly `limit − produced` tokens to come. One that ends
    by itself has, on average, what those that were longer than it is now went on for.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[int, bool]] = deque(maxlen=REMEMBERED)
        self._ordered: list[int] = []
        self._sums: list[int] = [0]
        self._full = 1.0
        self._fresh = True

    def ended(self, tokens: int, at_limit: bool) -> None:
        """Note a sequence that ended by itself, or at the limit that it had."""
        self._ended.append((tokens, at_limit))
        self._fresh = False

    def remaining(self, produced: int, limit: int | None) -> float:
        """Tokens to come, at least 0."""
        self._refresh()
        bound = float("inf") if limit is None else max(0, limit - produced)
        likely = min(bound, self._residual(produced, bound))
        if limit is None:
            return likely
        return min(bound, likely + self._full * (bound - likely))

    def _residual(self, produced: int, bound: float) -> float:
        first = bisect_right(self._ordered, produced)
        longer = len(self._ordered) - first
        if longer:
            return (self._sums[-1] - self._sums[first]) / longer - produced
        # Longer than all before it: as much again, for want of anything better.
        return float(produced) or min(bound, ASSUMED)

    def _refresh(self) -> None:
        if self._fresh:
            return
        self._fresh = True
        self._ordered = sorted(tokens for tokens, _ in self._ended)
        self._sums = list(accumulate(self._ordered, initial=0))
        self._full = sum(full for _, full in self._ended) / len(self._ended)
