"""Decides on a request before it costs anything: accepted as a whole, or refused as a whole."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from app.admission.forecast import Outlook
from app.admission.gate import Gate
from app.errors import InvalidValue, Overloaded, QueueFull, QueueTimeout, TidegateError
from app.permit import Claim, Permit

DEMAND_S = 60.0
"""How long a refused sequence counts as demand."""


@dataclass(frozen=True)
class Bounds:
    """What may be in the service at once.

    Attributes:
        sequences: unfinished ones; slots of all engines, and those that may wait.
        per_request: sequences of one request.
        per_window: sequences of a request that is served in windows.
        inputs: of such a request.
        wait_s: the longest wait for the first start.
        slo_s: the longest time to the first token that users accept; None: nobody said.
        reject_status: of a refusal for overload.

    """

    sequences: int
    per_request: int
    per_window: int
    inputs: int
    wait_s: float
    slo_s: float | None
    reject_status: int


@dataclass(frozen=True)
class Cost:
    """What a request asks for.

    Attributes:
        sequences: m prompts × n samples, a beam's width, or 0 when it does not need the engine.
        estimate: prompt tokens of the whole request.
        nested: the engine is called several times for one sequence.
        windowed: not all sequences need to be in the engine together, so that a window counts.

    """

    sequences: int
    estimate: int = 0
    nested: bool = False
    windowed: bool = False


def counted(cost: Cost, bounds: Bounds) -> int:
    """The sequences that a request is accepted for.

    Raises:
        InvalidValue: more than one request, or an idle service, may have.

    """
    most = bounds.inputs if cost.windowed else bounds.per_request
    if cost.sequences > most:
        raise InvalidValue(
            f"This request asks for {cost.sequences} sequences; at most {most} are allowed."
        )
    sequences = min(cost.sequences, bounds.per_window) if cost.windowed else cost.sequences
    if sequences > bounds.sequences:
        raise InvalidValue(
            f"This request asks for {sequences} sequences; this server never holds more than "
            f"{bounds.sequences} at once."
        )
    return sequences


def decide(cost: int, outlook: Outlook, bounds: Bounds) -> TidegateError | None:
    """Why a request is refused; None when it is accepted.

    A request for which a slot is free is accepted whatever is predicted: waiting would not help.
    """
    if outlook.unfinished + cost > bounds.sequences:
        return QueueFull(bounds.reject_status, outlook.first_token_s)
    limit_s = bounds.wait_s if bounds.slo_s is None else bounds.slo_s
    # Half of the limit is always left: if nobody waited, nothing better would ever be learned.
    kept_s = outlook.margin_s + outlook.room_s
    margin_s = 0.0 if bounds.slo_s is None else min(kept_s, limit_s / 2)
    predicted_s = outlook.first_token_s + margin_s
    if not outlook.at_once and predicted_s > limit_s:
        return Overloaded(bounds.reject_status, outlook.first_token_s - limit_s / 2)
    return None


class Refused:
    """Sequences that were refused for overload, as long as they count as demand."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, sequences: int) -> None:
        self._refused.append((self._clock(), sequences))
        self._sum += sequences

    @property
    def sequences(self) -> int:
        """Of the last minute."""
        oldest = self._clock() - DEMAND_S
        while self._refused and self._refused[0][0] < oldest:
            self._sum -= self._refused.popleft()[1]
        return self._sum


class Door:
    """Where permits come from."""

    def __init__(self, gate: Gate, bounds: Bounds) -> None:
        self.gate = gate
        self.bounds = bounds
        self.refused = Refused(gate.ledger.clock)

    @contextmanager
    def admit(self, route: str, cost: Cost, claim: Claim) -> Iterator[Permit]:
        """Accept a request, or refuse it at once.

        Raises:
            InvalidValue: it could never be accepted.
            QueueFull: too much is in the service.
            Overloaded: it would have to wait for too long.

        """
        sequences = counted(cost, self.bounds)
        outlook = self._decide(sequences, cost.estimate, claim) if sequences else None
        nested = cost.nested or sequences < cost.sequences
        accept = self.gate.ledger.permit(
            route, sequences, cost.estimate, nested=nested, windowed=cost.windowed, claim=claim
        )
        with accept as permit:
            if outlook is not None:
                permit.foreseen_s, permit.queued = outlook.first_token_s, not outlook.at_once
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self.bounds.wait_s, self.expire, permit)
            try:
                yield permit
            finally:
                timer.cancel()

    def _decide(self, sequences: int, tokens: int, claim: Claim) -> Outlook:
        """What is foreseen for an accepted request; a refusal is raised."""
        slo_s = self.bounds.slo_s
        if sequences == 1 and slo_s is not None and self.gate.pace.start_s(tokens) <= slo_s / 2:
            self.gate.rooms.note(claim.priority, tokens)
        outlook = self.gate.outlook(claim, tokens)
        refusal = decide(sequences, outlook, self.bounds)
        if isinstance(refusal, QueueFull):
            refusal = self._make_room(sequences, claim, outlook, refusal)
        if refusal is not None:
            self.refused.add(sequences)
            self.gate.denied(claim)
            roomless = replace(outlook, room_s=0.0)
            if isinstance(decide(sequences, roomless, self.bounds), Overloaded):
                self.gate.rooms.refused(claim.priority, self.gate.ledger.clock())
            raise refusal
        return outlook

    def _make_room(
        self, sequences: int, claim: Claim, outlook: Outlook, refusal: TidegateError
    ) -> TidegateError | None:
        """Give up what waits and has a lesser claim; nothing that has started, nor for nothing."""
        over = outlook.unfinished + sequences - self.bounds.sequences
        victims = self.gate.displaceable(claim, over)
        freed = sum(victim.unfinished for victim in victims)
        emptier = replace(outlook, unfinished=outlook.unfinished - freed, room_s=0.0)
        still = decide(sequences, emptier, self.bounds) if victims else refusal
        if still is None:
            for victim in victims:
                self.refused.add(victim.unfinished)
                victim.revoke(refusal)
        return still

    def expire(self, permit: Permit) -> None:
        """Its time is up: it ends, unless the engine has begun with it."""
        if permit.sequences and not self.gate.has_started(permit):
            permit.revoke(QueueTimeout(self.bounds.wait_s))
