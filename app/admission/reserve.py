"""How many slots stay free for those who have a better claim to them than who is next."""

import math

MEMORY_S = 30.0
"""How fast what was let through is forgotten."""
FORGOTTEN = 0.05
"""Less of a sequence than this is none."""
FEWEST = 32
"""Sequences that a share is over at least: one alone says nothing."""
SHARE = 0.05
"""Below it the slots that are kept for any class will do."""
RARELY = 0.0025
"""How often a more urgent sequence may find none of the slots that are kept for it."""
SLOTS_EACH = 2
"""Slots that are kept for each class or key that others hold back for, whatever it sends."""


def reserve_of(slots: int) -> int:
    """Slots that are kept for classes and keys at least, while they are seen."""
    return slots // 8


def most_of(slots: int) -> int:
    """Slots that are kept at the most; of a few, only a quarter."""
    return slots // 2 if slots >= 8 else slots // 4


class Mix:
    """The classes of the sequences that were lately let through. Times are seconds."""

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self._at = 0.0

    def granted(self, priority: int, sequences: int, now: float) -> None:
        """Take note of sequences that go to the engine."""
        self._fade(now)
        self._counts[priority] = self._counts.get(priority, 0.0) + sequences

    def _fade(self, now: float) -> None:
        stays = math.exp((self._at - now) / MEMORY_S)
        self._counts = {p: n * stays for p, n in self._counts.items() if n * stays > FORGOTTEN}
        self._at = now

    def more_urgent(self, priority: int, now: float) -> float:
        """The share of the classes that go before one."""
        self._fade(now)
        before = sum(n for p, n in self._counts.items() if p < priority)
        return before / max(FEWEST, sum(self._counts.values()))

    def reserve(self, priority: int, slots: int, now: float) -> int:
        """Slots that a class has to leave so that those before it nearly always find one.

        While more waits than there is room for, slots free up at the rate at which sequences are
        let through, and go to the reserve first. So the number of its slots that are taken is a
        birth-death process with the ratio `more_urgent`, and the probability of all r of them being
        taken is about that ratio to the power of r.
        """
        ratio = self.more_urgent(priority, now)
        if ratio < SHARE:
            return 0
        if ratio >= 1:
            return most_of(slots)
        return min(most_of(slots), math.ceil(math.log(RARELY) / math.log(ratio)))
