"""A simulated engine and clock for admission: vllm's scheduler in a few lines, step by step."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from app.admission.door import Bounds, Cost, Door
from app.admission.gate import Gate
from app.errors import TidegateError
from app.permit import Claim, Dispatch, Ended, Ledger
from app.workload import Capacity, DecodingStats, Step

STEP_S = 0.01
BLOCK = 16


class Counts:
    """An observer that adds up."""

    def __init__(self) -> None:
        self.accepted = 0
        self.finished: Counter[str] = Counter()
        self.errors: list[float] = []

    def sequences_accepted(self, route: str, sequences: int) -> None:
        self.accepted += sequences

    def sequences_finished(self, route: str, reason: str, sequences: int) -> None:
        self.finished[reason] += sequences

    def inter_token(self, route: str, seconds: float) -> None:
        return

    def prediction_error(self, route: str, seconds: float) -> None:
        self.errors.append(seconds)


@dataclass(eq=False)
class Sequence:
    """One sequence in the engine."""

    dispatch: Dispatch
    length: int
    produced: int = 0

    @property
    def held(self) -> int:
        """KV cache in tokens, by whole blocks."""
        return -(-(self.dispatch.tokens + self.produced) // BLOCK) * BLOCK


@dataclass(eq=False)
class Request:
    """One request of a test, and what became of it."""

    name: str
    key: str = ""
    priority: int = 0
    sequences: int = 1
    tokens: int = 10
    length: int = 20
    at: float = 0.0
    accepted_at: float | None = None
    first_at: float | None = None
    ended_at: float | None = None
    failure: TidegateError | None = None
    cancelled: bool = False
    task: "asyncio.Task[None] | None" = None


@dataclass
class Call:
    """How the ledger reaches into the engine."""

    engine: "World"
    sequences: list[Sequence] = field(default_factory=list)

    def abort(self) -> None:
        for sequence in self.sequences:
            self.engine.forget(sequence)

    def produced(self) -> int:
        return sum(sequence.produced for sequence in self.sequences)


class World:
    """Door, gate and an engine of so many slots, with a clock that only `run` moves."""

    def __init__(
        self,
        slots: int = 4,
        max_pending: int = 16,
        kv_tokens: int = 0,
        step_tokens: int = 256,
        slo_s: float | None = None,
        wait_s: float = 30.0,
        lookahead: int | None = None,
    ) -> None:
        self.now = 0.0
        self.counts = Counts()
        self.ledger = Ledger(self.counts, lambda: self.now)
        self.gate = Gate(self.ledger, wait_s / 2, lookahead)
        self.ledger.gate = self.gate
        bounds = Bounds(slots + max_pending, 128, slots, 2048, 1e9, slo_s, 429)
        self.wait_s = wait_s
        self.door = Door(self.gate, bounds)
        self.capacity = Capacity(slots, step_tokens, kv_tokens)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preempted = False
        self.reported = DecodingStats()
        self.peak_waiting = 0
        self.idle_slot_steps = 0
        self.order: list[str] = []
        self.served: Counter[str] = Counter()
        self.done: dict[Sequence, asyncio.Event] = {}
        self.first: dict[Sequence, asyncio.Event] = {}
        self.names = count()
        self.gate.serve(self.capacity, self.stats)

    # -- the engine

    def stats(self) -> DecodingStats:
        inside = len(self.waiting) + len(self.running)
        return DecodingStats(
            inside,
            min(self.reported.running, inside),
            min(self.reported.waiting, inside),
            0,
            self.reported.kv_cache_usage,
            self.reported.preempted and inside > 0,
        )

    def forget(self, sequence: Sequence) -> None:
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def step(self) -> None:
        """One step of the engine, if it has anything: decode, preempt, admit, report."""
        if not (self.waiting or self.running):
            return
        budget, preemptions = self.capacity.step_tokens, 0
        for sequence in list(self.running):
            budget -= 1
            sequence.produced += 1
            if sequence in self.first:
                self.first[sequence].set()
            while self._used() > (self.capacity.kv_tokens or float("inf")):
                victim = self.running.pop()
                victim.produced = 0
                self.waiting.insert(0, victim)
                preemptions += 1
                if victim is sequence:
                    break
        while self.waiting and not preemptions and len(self.running) < self.capacity.slots:
            first = self.waiting[0]
            room = (self.capacity.kv_tokens or float("inf")) - self._used()
            if first.dispatch.tokens > min(budget, room):
                break
            budget -= first.dispatch.tokens
            self.running.append(self.waiting.pop(0))
        self._report(preemptions)

    def _used(self) -> int:
        return sum(sequence.held for sequence in self.running)

    def _report(self, preemptions: int) -> None:
        generated = len(self.running)
        for sequence in [s for s in self.running if s.produced >= s.length]:
            self.running.remove(sequence)
            self.done[sequence].set()
        self.preempted = bool(self.waiting) and (self.preempted or preemptions > 0)
        kv = self._used() / self.capacity.kv_tokens if self.capacity.kv_tokens else 0.0
        self.reported = DecodingStats(
            0, len(self.running), len(self.waiting), 0, kv, self.preempted
        )
        self.peak_waiting = max(self.peak_waiting, len(self.waiting))
        if self.gate.lines.count and not self.waiting:
            self.idle_slot_steps += self.capacity.slots - len(self.running)
        self.gate.step(Step(0, self.now, len(self.running), generated))

    # -- its users

    def send(self, **values: object) -> Request:
        """A request that comes now; its task runs it to its end."""
        request = Request(f"r{next(self.names)}", at=self.now, **values)  # type: ignore[arg-type]
        request.task = asyncio.ensure_future(self._serve(request))
        return request

    async def _serve(self, request: Request) -> None:
        claim = Claim(request.key, request.priority, request.length)
        cost = Cost(request.sequences, request.tokens)
        try:
            with self.door.admit("any", cost, claim) as permit:
                request.accepted_at = self.now
                permit.lost.add_done_callback(lambda _: request.task and request.task.cancel())
                try:
                    await self._generate(request, permit.dispatch)
                except asyncio.CancelledError:
                    request.cancelled = permit.failure is None
                    if permit.failure is None:
                        raise
                    permit.lost.exception()
                    raise permit.failure from None
        except TidegateError as error:
            request.failure = error
        finally:
            request.ended_at = self.now

    async def _generate(self, request: Request, dispatch: Callable[..., object]) -> None:
        call = Call(self)
        async with dispatch(request.sequences, request.length, request.tokens, call) as held:  # type: ignore[attr-defined]
            call.sequences = [Sequence(held, request.length) for _ in range(request.sequences)]
            held.in_engine = True
            self.waiting += call.sequences
            self.order.append(request.name)
            self.done.update((sequence, asyncio.Event()) for sequence in call.sequences)
            await asyncio.gather(*(self._follow(request, held, s) for s in call.sequences))
            for sequence in call.sequences:
                ended = Ended(request.tokens, request.length, STEP_S, at_limit=True)
                self.gate.measured(ended)
                del self.done[sequence]

    async def _follow(self, request: Request, held: Dispatch, sequence: Sequence) -> None:
        await self.started(sequence)
        if request.first_at is None:
            request.first_at = self.now
            held.output(0)
            self.gate.first_token(held.permit)
        await self.done[sequence].wait()
        held.output(sequence.length)
        self.served[request.key] += request.tokens + 2 * request.length
        held.end("length")

    async def started(self, sequence: Sequence) -> None:
        if not sequence.produced:
            await self.first.setdefault(sequence, asyncio.Event()).wait()
            del self.first[sequence]

    # -- time

    async def run(self, seconds: float, arrivals: Callable[[float], None] | None = None) -> None:
        """Let time pass: at each step `arrivals` may send requests."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            if arrivals is not None:
                arrivals(self.now)
            await self.settle()
            self.now += STEP_S
            self.step()
            self._expire()
            await self.settle()
            self.check()

    async def until_idle(self, at_most: float) -> None:
        """Until everything has ended."""
        await self.settle()
        end = self.now + at_most
        while self.ledger.permits and self.now < end:
            await self.run(STEP_S)

    async def settle(self) -> None:
        """Everybody does what can be done now."""
        for _ in range(6):
            await asyncio.sleep(0)

    def _expire(self) -> None:
        """The timers of the door, on this clock."""
        for permit in list(self.ledger.permits):
            if self.now - permit.accepted_at >= self.wait_s:
                self.door.expire(permit)

    def check(self) -> None:
        """What holds at every moment."""
        counts, ledger = self.counts, self.ledger
        assert ledger.unfinished == counts.accepted - sum(counts.finished.values())
        assert 0 <= ledger.unfinished <= self.door.bounds.sequences
        assert ledger.handed <= ledger.unfinished
        flows = {id(line.flow): line.flow for line in self.gate.lines.all()}.values()
        assert all(flow.waiting >= 0 and flow.live >= 0 for flow in flows)
        assert sum(flow.waiting + flow.live for flow in flows) == ledger.unfinished
