"""Hands calls to the engine one by one, so that its own queue stays short and the order is ours."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.admission.flows import OUTPUT_WEIGHT, Flow, Flows
from app.admission.forecast import Margin, Outlook, Rooms, kv_peak, slot_at
from app.admission.lengths import Lengths
from app.admission.line import Line, Lines, Ticket
from app.admission.pace import Pace
from app.admission.reserve import SLOTS_EACH, Mix, most_of, reserve_of
from app.permit import Claim, Dispatch, Ended, Ledger, Permit
from app.workload import Capacity, DecodingStats, Step

RECENT_S = 60.0
"""How long slots are kept for a key or a class that has had no request."""
DENIED_S = 2.0
"""How long a key that was refused counts as one that has more to send."""
FORECAST_S = 0.02
"""How long a forecast of free slots is good for."""


def lookahead_of(slots: int) -> int:
    """Sequences that may wait inside the engine, so that a slot that frees is filled at once."""
    return max(2, slots // 8)


@dataclass(frozen=True)
class Room:
    """What the engine can take at a moment; pure.

    Attributes:
        unstarted_tokens: of the prompts that it has been handed and has not started.
        lookahead: sequences that may wait inside it.

    """

    capacity: Capacity
    stats: DecodingStats
    unstarted_tokens: int
    lookahead: int

    def takes(self, sequences: int, tokens: int) -> bool:
        """Whether it may be handed a call, by slots and by tokens of a step.

        What is over the free slots and one step's tokens waits inside: no more of it than the
        lookahead. A call that is larger than that goes when nothing else waits inside.
        """
        inside = self.stats
        if inside.inside == 0:
            return True
        if inside.preempted or inside.inside + sequences > self._most(sequences):
            return False
        if inside.unstarted == 0:
            return True
        if self.unstarted_tokens + sequences * tokens > self.capacity.step_tokens:
            return False
        # A queue inside although slots are free: something else binds.
        return inside.unstarted + sequences <= self.lookahead or inside.waiting == 0

    def _most(self, sequences: int) -> int:
        """How many may be inside; a call larger than the lookahead goes when it can start."""
        over = self.lookahead if self.stats.unstarted else max(self.lookahead, sequences)
        return self.capacity.slots + over


@dataclass
class Slots:
    """The engine's slots at a moment.

    Attributes:
        at: of the moment, seconds.
        count: slots that it has for sequences.
        inside: sequences inside it.
        remaining_s: seconds until each of those in a slot ends; None: nobody has asked.

    """

    at: float
    count: int
    inside: int
    remaining_s: list[float] | None = None


class Gate:
    """The queue in front of one service's engines. Lives on one event loop, takes no locks.

    Args:
        ledger: whose permits wait here.
        aging_s: after this wait, a ticket gets its turn whatever is before it.
        lookahead: sequences that may wait inside the engine; None: `lookahead_of` the slots.

    """

    def __init__(self, ledger: Ledger, aging_s: float, lookahead: int | None = None) -> None:
        self.ledger = ledger
        self.lengths = Lengths()
        self.pace = Pace()
        self.margin = Margin()
        self.rooms = Rooms()
        self.flows = Flows()
        self.mix = Mix()
        self.lines = Lines(aging_s)
        self._lookahead = lookahead
        self._capacity: Capacity | None = None
        self._stats: Callable[[], DecodingStats] = DecodingStats
        self._granted: dict[Dispatch, None] = {}  # let through, and not yet held
        self._seen: dict[Permit, tuple[Line, int, int]] = {}
        self._forecast: Slots | None = None

    # -- the engine

    def serve(self, capacity: Capacity, stats: Callable[[], DecodingStats]) -> None:
        """The engine is there: from now on it is handed what waits."""
        self._capacity = capacity
        self._stats = stats
        self.pump()

    def step(self, step: Step) -> None:
        """The engine has made a step."""
        self.pace.step(step)
        self.pump()

    def stats(self) -> DecodingStats:
        """Of the engine, with what it has been let through and has not got yet."""
        now = self._stats()
        coming = sum(dispatch.live for dispatch in self._inside() if not dispatch.in_engine)
        return DecodingStats(
            inside=now.inside + coming,
            running=min(now.running, now.inside),
            waiting=now.waiting,
            deferred=now.deferred,
            kv_cache_usage=now.kv_cache_usage,
            preempted=now.preempted or self._went_back(now.waiting),
        )

    def _went_back(self, waiting: int) -> bool:
        """Whether one that had begun is in the engine's queue, which is told late or not at all."""
        if self._capacity is None or self._capacity.engines > 1:
            return False  # which of them has the last ones is not known
        for dispatch in reversed(self.ledger.dispatches):
            if waiting <= 0:
                return False
            if dispatch.live and dispatch.call.produced():
                return True
            waiting -= dispatch.live
        return False

    # -- the ledger

    def accepted(self, permit: Permit) -> None:
        if not permit.sequences:
            return
        line = self.line_of(permit.claim)
        line.seen_at = self.ledger.clock()
        self._seen[permit] = (line, 0, 0)
        self._count(permit)

    def line_of(self, claim: Claim) -> Line:
        """Where a request that comes now would wait."""
        return self.lines.of(self.flows.of(claim.key), claim.priority)

    def produced(self, dispatch: Dispatch, tokens: int) -> None:
        self._flow(dispatch.permit).output(tokens)

    def changed(self, permit: Permit) -> None:
        self._count(permit)
        self._forecast = None
        self.pump()

    def _count(self, permit: Permit) -> None:
        """Bring the counts of a permit's line up to date."""
        if permit not in self._seen:
            return
        line, waiting, live = self._seen[permit]
        line.waiting += permit.undispatched - waiting
        line.flow.waiting += permit.undispatched - waiting
        line.flow.live += permit.live - live
        if permit in self.ledger.permits:
            self._seen[permit] = (line, permit.undispatched, permit.live)
        else:
            del self._seen[permit]
            self.flows.left(line.flow)
            self.lines.tidy()

    def _flow(self, permit: Permit) -> Flow:
        return self._seen[permit][0].flow

    # -- waiting

    async def wait(self, dispatch: Dispatch) -> None:
        """Return when the engine may have the call, which has to be held at once.

        A further call of a request that holds a slot already (a tool turn, a beam) does not wait.
        """
        permit = dispatch.permit
        follows = permit.nested and permit.dispatched and not permit.windowed
        if follows:
            return
        line = self._seen[permit][0]
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = self.lines.add(line, dispatch, self.ledger.clock(), granted)
        self.pump()
        try:
            await granted
        except asyncio.CancelledError:
            self.lines.remove(line, ticket)
            if dispatch in self._granted:
                self._arrived(line, dispatch)
                self.pump()
            raise
        self._arrived(line, dispatch)

    def _arrived(self, line: Line, dispatch: Dispatch) -> None:
        """A call that was let through is held from now on, or is given up."""
        del self._granted[dispatch]
        line.flow.coming -= dispatch.sequences

    def pump(self) -> None:
        """Let through what may go."""
        while self.lines.count and self._capacity is not None and self._grant_one():
            pass

    def _grant_one(self) -> bool:
        now = self.ledger.clock()
        assert self._capacity is not None
        stats = self.stats()
        unstarted_tokens = self._last_tokens(stats.unstarted)
        room = Room(self._capacity, stats, unstarted_tokens, self.lookahead)
        for line, ticket, aged in self.lines.heads(now):
            dispatch = ticket.dispatch
            if not aged and not self._leaves_reserve(line, dispatch, room, now):
                continue
            if not room.takes(dispatch.sequences, dispatch.tokens):
                return False
            if not self._fits_cache(dispatch, room):
                return False
            self._grant(line, ticket, now)
            return True
        return False

    def _grant(self, line: Line, ticket: Ticket, now: float) -> None:
        self.lines.remove(line, ticket)
        if ticket.granted.cancelled():  # whose task has not run since
            return
        self.lines.taken(ticket, now)
        self.mix.granted(line.priority, ticket.dispatch.sequences, now)
        self._granted[ticket.dispatch] = None
        line.flow.coming += ticket.dispatch.sequences
        line.flow.prompt(ticket.dispatch.tokens)
        self._forecast = None
        ticket.granted.set_result(None)

    @property
    def lookahead(self) -> int:
        assert self._capacity is not None
        return lookahead_of(self._capacity.slots) if self._lookahead is None else self._lookahead

    def _inside(self) -> list[Dispatch]:
        """Calls that the engine has, or is about to have, in that order."""
        return [*(d for d in self.ledger.dispatches if d.live), *self._granted]

    def _last_tokens(self, sequences: int) -> int:
        """Prompt tokens of the sequences that were let through last."""
        coming = sum(dispatch.sequences for dispatch in self._granted)
        tokens = sum(dispatch.sequences * dispatch.tokens for dispatch in self._granted)
        return tokens + self.ledger.last_tokens(sequences - coming)

    # -- what is decided

    def _leaves_reserve(self, line: Line, dispatch: Dispatch, room: Room, now: float) -> bool:
        """Whether enough slots stay free for those who have a better claim to them."""
        slots, sequences = room.capacity.slots, dispatch.sequences
        inside = room.stats.inside + sequences
        if room.stats.inside == 0 or inside <= slots - most_of(slots):
            return True
        kept = self._reserve(line, sequences, slots, now)
        return not kept or inside <= slots - kept

    def _reserve(self, line: Line, sequences: int, slots: int, now: float) -> int:
        """Slots for more urgent classes, and for keys with less than half their part.

        A key that has more is not waiting for a slot to be kept for it: it sends all the time. A
        call that is so large that it could not begin beside a larger reserve leaves the least.
        """
        lines = list(self.lines.recent(now, RECENT_S))
        urgent = {other.priority for other in lines if other.priority < line.priority}
        flows = {other.flow for other in lines}
        part = max(1.0, slots / max(1, len(flows)))
        small = 0
        if line.flow.inside and line.flow.inside + sequences > part:
            small = sum(flow is not line.flow and flow.inside < part / 2 for flow in flows)
        least = min(reserve_of(slots), SLOTS_EACH * (len(urgent) + small))
        kept = max(least, self.mix.reserve(line.priority, slots, now)) if urgent else least
        return kept if sequences <= slots - kept else least

    def _fits_cache(self, dispatch: Dispatch, room: Room) -> bool:
        """Whether the KV cache will hold all that is in the engine to its end, with this call."""
        capacity, block = room.capacity.kv_tokens, room.capacity.kv_block
        in_the_end = dispatch.tokens + self.lengths.remaining(0, dispatch.limit)
        dispatch.footprint = math.ceil(in_the_end / block) * block
        new = dispatch.footprint * dispatch.sequences
        if not capacity or room.stats.inside == 0:
            return True
        if new > capacity:
            # It will never fit as a whole: the engine begins with as many of its samples as do.
            return room.stats.unstarted == 0
        inside = self._inside()
        if sum(d.footprint * d.live for d in inside) + new <= capacity:
            return True
        held = list(self._held(inside, room.stats.kv_cache_usage * capacity))
        held += [(float(dispatch.tokens), self._to_come(dispatch, 0))] * dispatch.sequences
        return kv_peak(held, block) <= capacity

    def _held(self, inside: Sequence[Dispatch], used: float) -> Iterator[tuple[float, float]]:
        """Of each sequence in the engine: tokens it holds, tokens to come.

        Prompts that share cached blocks hold less than their lengths add up to; the engine's own
        figure says how much less.
        """
        produced = [(d, d.produced_each) for d in inside]
        begun = sum((d.tokens + tokens) * d.live for d, tokens in produced if tokens)
        share = min(1.0, used / begun) if begun else 1.0
        for d, tokens in produced:
            held = (d.tokens + tokens) * (share if tokens else 1.0)
            yield from [(held, self._to_come(d, tokens))] * d.live

    def _to_come(self, dispatch: Dispatch, produced: int) -> float:
        return self.lengths.remaining(produced, dispatch.limit)

    def has_started(self, permit: Permit) -> bool:
        """Whether the engine has begun with a sequence of it, as far as is known."""
        if permit.ttft_s is not None or any(d.call.produced() for d in permit.open):
            return True
        unstarted = self.stats().unstarted
        for dispatch in reversed(self.ledger.dispatches):
            if unstarted <= 0 and dispatch.permit is permit:
                return True
            unstarted -= dispatch.live
        return False

    def displaceable(self, claim: Claim, sequences: int) -> list[Permit]:
        """Requests that wait and whose places a newcomer has the better claim to.

        Those of a less urgent class; in the same class, those of a key that has more than its
        part of the queue while the newcomer's has less. The latest of them go first; none when
        all together are too few.
        """
        line = self.line_of(claim)
        found: list[Permit] = []
        for other in self.lines.backwards():
            if not self._yields(other, line):
                continue
            for ticket in reversed(other.tickets):
                permit = ticket.dispatch.permit
                if not permit.dispatched and permit not in found:
                    found.append(permit)
                    sequences -= permit.unfinished
                    if sequences <= 0:
                        return found
        return []

    def _yields(self, other: Line, line: Line) -> bool:
        if other.priority != line.priority:
            return other.priority > line.priority
        flows = {other.flow, line.flow, *(each.flow for each in self.lines.all() if each.waiting)}
        part = sum(flow.waiting for flow in flows) / len(flows)
        return other.flow is not line.flow and other.flow.waiting > part > line.flow.waiting

    # -- what is foreseen

    def outlook(self, claim: Claim, tokens: int) -> Outlook:
        """For a request of that many prompt tokens that comes now."""
        if self._capacity is None:
            return Outlook(self.ledger.unfinished, at_once=True, first_token_s=0.0, margin_s=0.0)
        line = self.line_of(claim)
        ahead = self.lines.ahead_of(line) + self._owed(line)
        slots = self._slots()
        most = self._capacity.slots
        # What is kept for others is not free; when they have it, more has to end.
        kept = self._reserve(line, 1, most, self.ledger.clock())
        free = min(slots.count, most - kept) - slots.inside
        if any(other.tickets and other.rank <= line.rank for other in self.lines.all()):
            free = min(free, 0)  # whatever is free, the gate has not let the first of them through
        at_once = ahead < free
        wait_s = 0.0 if at_once else self._wait_s(ahead, free, slots)
        return Outlook(
            unfinished=self.ledger.unfinished,
            at_once=at_once,
            first_token_s=wait_s + self.pace.start_s(tokens),
            margin_s=self.margin.seconds(self.ledger.clock()),
            room_s=self._room_s(claim, tokens),
        )

    def _room_s(self, claim: Claim, tokens: int) -> float:
        """What a long prompt takes longer than this one to its first token, while some are refused.

        Otherwise refusals fall on the long ones: the short ones are let wait for as long as they
        can, and whatever is longer would be late behind them.
        """
        long = self.rooms.long(claim.priority, self.ledger.clock())
        return max(0.0, self.pace.start_s(long) - self.pace.start_s(tokens))

    def denied(self, claim: Claim) -> None:
        """A request was refused for overload."""
        self.flows.of(claim.key).denied_at = self.ledger.clock()

    def _owed(self, line: Line) -> int:
        """Sequences by which keys that were just refused are behind: theirs will go first.

        Without it, the places that free up at the door would go to keys by how often they ask. A
        fifth of the slots is let be: chance alone brings so much, and holding back costs.
        """
        assert self._capacity is not None
        since = self.ledger.clock() - DENIED_S
        behind = {
            other.flow
            for other in self.lines.all()
            if other.priority == line.priority
            and other.flow is not line.flow
            and other.flow.denied_at >= since
        }
        if not behind:
            return 0
        let_be = self._capacity.slots // 5
        each = OUTPUT_WEIGHT * max(1.0, self.lengths.remaining(0, None))
        debts = (int((line.flow.served - flow.served) / each) for flow in behind)
        return sum(max(0, debt - let_be) for debt in debts)

    def first_token(self, permit: Permit) -> None:
        """A request has its first token: how good was the prediction?"""
        if permit.foreseen_s is None or permit.ttft_s is None:
            return
        error_s = permit.foreseen_s - permit.ttft_s
        if permit.queued and self.pace.token_s:
            self.margin.note(self.ledger.clock(), -error_s)
        self.ledger.observer.prediction_error(permit.route, error_s)

    def measured(self, sequence: Ended) -> None:
        """A sequence has ended: learn from it."""
        self.pace.prefill(sequence.prompt_tokens, sequence.prefill_s)
        self.lengths.ended(sequence.output_tokens, sequence.at_limit)

    def _slots(self) -> Slots:
        now = self.ledger.clock()
        if self._forecast is None or now - self._forecast.at > FORECAST_S:
            assert self._capacity is not None
            stats = self.stats()
            full = stats.waiting > 0 or stats.preempted
            count = max(1, stats.running) if full else self._capacity.slots
            self._forecast = Slots(now, count, stats.inside)
        return self._forecast

    def _wait_s(self, ahead: int, free: int, slots: Slots) -> float:
        """Seconds until a sequence that has so many before it gets a slot."""
        if slots.remaining_s is None:
            left = [
                self._to_come(dispatch, produced) * self.pace.token_s
                for dispatch in self._inside()
                for produced in [dispatch.produced_each]
                for _ in range(dispatch.live)
            ]
            # Those that are not in a batch yet are about to be, as far as there are slots.
            slots.remaining_s = sorted(left[: slots.count])
        service_s = self.lengths.remaining(0, None) * self.pace.token_s
        return slot_at(ahead, free, slots.remaining_s, service_s)
