"""How many slots stay free for those who have a better claim to them than who is next."""

import math

REMEMBERED = 64
"""How many sequences a share is over, about."""
RARELY = 0.005
"""How often a more urgent sequence may find none of the slots that are kept for it."""
SLOTS_EACH = 2
"""Slots that are kept for each class or key that others hold back for, whatever it sends."""


def reserve_of(slots: int) -> int:
    """Slots that are kept for classes and keys at least, while they are seen."""
    return slots // 8


def most_of(slots: int) -> int:
    """Slots that are kept at the most."""
    return slots // 2


class Mix:
    """The classes of the sequences that were lately let through."""

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}

    def granted(self, priority: int, sequences: int) -> None:
        """Take note of sequences that go to the engine."""
        stays = (1 - 1 / REMEMBERED) ** sequences
        self._shares = {p: share * stays for p, share in self._shares.items() if share > RARELY}
        self._shares[priority] = self._shares.get(priority, 0.0) + 1 - stays

    def more_urgent(self, priority: int) -> float:
        """The share of the classes that go before one."""
        return sum(share for p, share in self._shares.items() if p < priority)

    def reserve(self, priority: int, slots: int) -> int:
        """Slots that a class has to leave so that those before it nearly always find one.

        While more waits than there is room for, slots free up at the rate at which sequences are
        let through, and go to the reserve first. So the number of its slots that are taken is a
        birth-death process with the ratio `more_urgent`, and the probability of all r of them being
        taken is about that ratio to the power of r.
        """
        ratio = self.more_urgent(priority)
        if ratio <= RARELY:
            return 0
        if ratio >= 1:
            return most_of(slots)
        return min(most_of(slots), math.ceil(math.log(RARELY) / math.log(ratio)))
