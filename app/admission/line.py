"""The queue: who is next, by priority class, then fair share, then arrival."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from app.admission.flows import Flow
from app.permit import Dispatch

MOST_URGENT = 32
"""Priorities beyond it, on either side, are of one class: clients could make any number of them."""
AGED_EVERY = 8
"""One grant in so many goes to whoever has waited longest, if that is long."""


@dataclass(eq=False)
class Ticket:
    """One call of the engine that waits."""

    dispatch: Dispatch
    number: int
    since: float
    granted: "asyncio.Future[None]"


@dataclass(eq=False)
class Line:
    """Those of one key and one priority, in order of arrival.

    Attributes:
        waiting: accepted sequences that the engine has not been handed, those included whose
            prompt is being tokenised and that have no ticket yet.
        seen_at: when its last request came, seconds.

    """

    flow: Flow
    priority: int
    waiting: int = 0
    seen_at: float = 0.0
    tickets: "deque[Ticket]" = field(default_factory=deque)

    @property
    def rank(self) -> tuple[int, float, int]:
        return self.priority, self.flow.served, self.flow.inside


class Lines:
    """All lines, and how they take turns."""

    def __init__(self, aging_s: float) -> None:
        self.aging_s = aging_s
        self.count = 0
        self._lines: dict[tuple[int, str], Line] = {}
        self._numbers = 0
        self._since_aged = 0

    def of(self, flow: Flow, priority: int) -> Line:
        priority = max(-MOST_URGENT, min(MOST_URGENT, priority))
        return self._lines.setdefault((priority, flow.name), Line(flow, priority))

    def add(
        self, line: Line, dispatch: Dispatch, now: float, granted: "asyncio.Future[None]"
    ) -> Ticket:
        self._numbers += 1
        ticket = Ticket(dispatch, self._numbers, now, granted)
        line.tickets.append(ticket)
        self.count += 1
        return ticket

    def remove(self, line: Line, ticket: Ticket) -> None:
        """Take a ticket out; a second time changes nothing."""
        if ticket in line.tickets:
            line.tickets.remove(ticket)
            self.count -= 1

    def taken(self, ticket: Ticket, now: float) -> None:
        """Note that a ticket was granted: every so many grants, the oldest is next."""
        aged = now - ticket.since >= self.aging_s
        self._since_aged = 0 if aged else self._since_aged + 1

    def heads(self, now: float) -> Iterator[tuple[Line, Ticket, bool]]:
        """The first of each line, in the order in which they should go, and whether it is aged."""
        lines = sorted(
            (line for line in self._lines.values() if line.tickets), key=lambda line: line.rank
        )
        oldest = min(lines, key=lambda line: line.tickets[0].number, default=None)
        if oldest is not None and self._is_due(oldest.tickets[0], now):
            yield oldest, oldest.tickets[0], True
            return
        for line in lines:
            yield line, line.tickets[0], False

    def _is_due(self, ticket: Ticket, now: float) -> bool:
        return self._since_aged >= AGED_EVERY and now - ticket.since >= self.aging_s

    def ahead_of(self, line: Line) -> int:
        """Sequences that would go before one that joins a line now."""
        return line.waiting + sum(
            _ahead(other, line) for other in self._lines.values() if other is not line
        )

    def all(self) -> Iterable[Line]:
        return self._lines.values()

    def recent(self, now: float, within_s: float) -> Iterator[Line]:
        """Those in which somebody waits, or came within the last seconds."""
        return (
            line for line in self._lines.values() if line.waiting or now - line.seen_at <= within_s
        )

    def backwards(self) -> list[Line]:
        """Those with tickets, from the one that has least claim to its places."""
        lines = [line for line in self._lines.values() if line.tickets]
        return sorted(lines, key=lambda line: (-line.priority, -line.flow.waiting))

    def tidy(self) -> None:
        """Forget the lines in which nobody is."""
        if len(self._lines) > 64:
            kept = sorted(self._lines.items(), key=lambda item: -item[1].seen_at)
            self._lines = dict(kept[:32]) | {
                key: line for key, line in kept[32:] if line.tickets or line.flow.active
            }


def _ahead(other: Line, line: Line) -> int:
    """Of another line: all of a more urgent class; of the same class, as many as take turns."""
    if other.priority != line.priority:
        return other.waiting if other.priority < line.priority else 0
    turns = line.waiting + (other.flow.served <= line.flow.served)
    return min(other.waiting, turns)
