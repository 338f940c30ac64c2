"""Our front door in front of an engine model: bounds, timeout, fair share, prediction.

What `app/admission/` decides, for requests of one sequence each. Left out: slots that are kept for
others (the reserve), giving up what waits for a better claim, and the debts of tenants that were
refused; ADR 0010 says why.
"""

from collections import deque
from dataclasses import dataclass, replace

from loadtest.simulator.engine import Engine
from loadtest.simulator.foresight import Lengths, Margin, Pace, Rooms, kv_peak, slot_at
from loadtest.simulator.job import Job
from loadtest.simulator.lines import Lines
from loadtest.simulator.ticks import Ticks, seconds, ticks

DEMAND_S = 60.0
"""How long what was refused counts as demand."""


@dataclass(frozen=True)
class DoorSettings:
    """The service's own names.

    Attributes:
        max_pending: None: four times the slots.
        lookahead: sequences that may wait in the engine; None: an eighth of the slots.
        limits_known: a request's `max_tokens` is what it will make, as in a load test; otherwise
            lengths are learned from those that ended.

    """

    max_pending: int | None = None
    queue_timeout_s: float = 30.0
    ttft_slo_s: float | None = None
    lookahead: int | None = None
    limits_known: bool = False

    def filled(self, slots: int) -> "DoorSettings":
        """With what depends on the slots."""
        pending = 4 * slots if self.max_pending is None else self.max_pending
        ahead = max(2, slots // 8) if self.lookahead is None else self.lookahead
        return replace(self, max_pending=pending, lookahead=ahead)


@dataclass(frozen=True)
class Outlook:
    """What is foreseen for a request that comes now."""

    at_once: bool
    first_token_s: float
    margin_s: float
    room_s: float = 0.0


class Door:
    """Decides on each request when it comes, and hands them to the engine one by one.

    Attributes:
        late: those whose time was up, for whoever asks next.

    """

    def __init__(self, engine: Engine, settings: DoorSettings) -> None:
        self.engine = engine
        self.settings = settings.filled(engine.settings.max_num_seqs)
        self.lengths, self.pace, self.margin, self.rooms = Lengths(), Pace(), Margin(), Rooms()
        self.lines = Lines(ticks(self.settings.queue_timeout_s / 2), engine.produced)
        self.late: list[Job] = []
        self._timeout = ticks(self.settings.queue_timeout_s)
        self._deadlines: deque[Job] = deque()
        self._refused: deque[Ticks] = deque()
        self._foreseen: dict[int, float] = {}
        self._awaited: list[Job] = []  # foreseen, in the engine, and without a first token
        self._footprints: dict[int, int] = {}
        self._held = 0
        self._fresh: dict[int, Job] = {}  # handed over since the engine's last step
        self._last = (0, 0, 0)  # the engine's busy time and tokens, and what ran

    @property
    def unfinished(self) -> int:
        return self.lines.count + self.engine.unfinished

    def refused(self, now: Ticks) -> int:
        """How many were refused when they came, of the last minute."""
        while self._refused and self._refused[0] < now - ticks(DEMAND_S):
            self._refused.popleft()
        return len(self._refused)

    # -- a request comes

    def offer(self, job: Job, now: Ticks) -> bool:
        """Accept or refuse it; what is accepted may start at once."""
        slo_s = self.settings.ttft_slo_s
        if slo_s is not None and self.pace.start_s(job.prompt) <= slo_s / 2:
            self.rooms.note(job.priority, job.prompt)
        outlook = self.outlook(job, now)
        refusal = self._refusal(outlook)
        if refusal is not None:
            if self._refusal(replace(outlook, room_s=0.0)) == "overloaded":
                self.rooms.refused(job.priority, seconds(now))
            job.refused, job.ended = refusal, now
            self._refused.append(now)
            return False
        if not outlook.at_once and self.pace.token_s:
            self._foreseen[job.number] = outlook.first_token_s
        self.lines.add(job)
        self._deadlines.append(job)
        self.pump(now)
        return True

    def _refusal(self, outlook: Outlook) -> str | None:
        given = self.settings
        assert given.max_pending is not None
        if self.unfinished + 1 > self.engine.settings.max_num_seqs + given.max_pending:
            return "queue_full"
        limit_s = given.queue_timeout_s if given.ttft_slo_s is None else given.ttft_slo_s
        margin_s = (
            0.0 if given.ttft_slo_s is None else min(outlook.margin_s + outlook.room_s, limit_s / 2)
        )
        too_late = outlook.first_token_s + margin_s > limit_s
        return "overloaded" if too_late and not outlook.at_once else None

    def outlook(self, job: Job, now: Ticks) -> Outlook:
        """For a request that comes now."""
        slots = self._slots()
        free = slots - self.engine.unfinished
        if self.lines.count:
            free = min(free, 0)  # whatever is free, the first of them was not let through
        ahead = self.lines.ahead_of(job) if self.lines.count else 0
        start_s = self.pace.start_s(job.prompt)
        long = self.rooms.long(job.priority, seconds(now))
        if ahead < free:
            return Outlook(at_once=True, first_token_s=start_s, margin_s=0.0)
        return Outlook(
            at_once=False,
            first_token_s=self._wait_s(ahead, free, slots) + start_s,
            margin_s=self.margin.seconds(seconds(now)),
            room_s=max(0.0, self.pace.start_s(long) - start_s),
        )

    def _slots(self) -> int:
        """That the engine has for sequences: with a queue inside, what runs is all that fits."""
        engine = self.engine
        full = len(engine.waiting) > len(self._fresh)
        return max(1, len(engine.running)) if full else engine.settings.max_num_seqs

    def _wait_s(self, ahead: int, free: int, slots: int) -> float:
        engine, token_s = self.engine, self.pace.token_s
        inside = [*engine.running, *engine.waiting]
        remaining_s = sorted(self._to_come(job) * token_s for job in inside[:slots])
        return slot_at(ahead, free, remaining_s, self.lengths.remaining(0, None) * token_s)

    def _to_come(self, job: Job) -> float:
        return self.lengths.remaining(self.engine.produced(job), self._limit(job))

    def _limit(self, job: Job) -> int | None:
        return job.output if self.settings.limits_known else None

    # -- the engine moves

    def stepped(self, ended: list[Job]) -> None:
        """The engine has made steps, in the last of which these ended."""
        self._learn_pace()
        self._learn_margin()
        self._fresh.clear()
        for job in ended:
            assert job.first is not None
            assert job.started is not None
            self._held -= self._footprints.pop(job.number)
            self.lines.ended(job)
            self.pace.prefill(job.prompt, seconds(job.first - job.started))
            self.lengths.ended(job.output, at_limit=self.settings.limits_known)
        self.pump(self.engine.now)

    def _learn_margin(self) -> None:
        """How good were the predictions of those that have their first token now?"""
        for job in self._awaited:
            if job.first is not None:
                error_s = seconds(job.first - job.arrived) - self._foreseen.pop(job.number)
                self.margin.note(seconds(self.engine.now), error_s)
        self._awaited = [job for job in self._awaited if job.first is None]

    def _learn_pace(self) -> None:
        busy, tokens, ran = self._last
        engine = self.engine
        running = len(engine.running)
        made = (engine.tokens - tokens) / max(1, ran, running)
        if ran and engine.busy > busy:
            self.pace.passed(seconds(engine.busy - busy), made)
        self._last = (engine.busy, engine.tokens, running)

    # -- handing over

    def pump(self, now: Ticks) -> None:
        """Hand over what may go, after those have left whose time is up."""
        self.expire(now)
        while self.lines.count:
            job = self.lines.first(now)
            if not (self._takes(job) and self._fits(job)):
                return
            self.lines.granted(job, now)
            self._footprints[job.number] = footprint = self._footprint(job)
            self._held += footprint
            self._fresh[job.number] = job
            if job.number in self._foreseen:
                self._awaited.append(job)
            self.engine.add(job, now)

    def _takes(self, job: Job) -> bool:
        """By slots and by tokens of a step; the lookahead waits in the engine."""
        engine, given = self.engine, self.engine.settings
        assert self.settings.lookahead is not None
        inside, unstarted = engine.unfinished, len(engine.waiting)
        if inside == 0:
            return True
        if inside + 1 > given.max_num_seqs + self.settings.lookahead:
            return False
        if unstarted == 0:
            return True
        if engine.waiting[0].preemptions:
            return False
        tokens = sum(waiting.prompt for waiting in engine.waiting)
        if tokens + job.prompt > given.max_num_batched_tokens:
            return False
        return unstarted + 1 <= self.settings.lookahead or unstarted == len(self._fresh)

    def _footprint(self, job: Job) -> int:
        size = self.engine.settings.block_size
        return -(-int(job.prompt + self.lengths.remaining(0, self._limit(job))) // size) * size

    def _fits(self, job: Job) -> bool:
        """Whether the KV cache holds all that is inside to its end, with this one."""
        engine, block = self.engine, self.engine.settings.block_size
        capacity = engine.settings.kv_blocks * block
        new = self._footprint(job)
        if engine.idle or self._held + new <= capacity:
            return True
        if new > capacity:
            return not engine.waiting
        inside = [*engine.running, *engine.waiting]
        held = [(float(one.prompt + engine.produced(one)), self._to_come(one)) for one in inside]
        held.append((float(job.prompt), self.lengths.remaining(0, self._limit(job))))
        return kv_peak(held, block) <= capacity

    def expire(self, now: Ticks) -> None:
        """Refuse those that were not started in time."""
        waits = self._deadlines
        while waits and (waits[0].started is not None or waits[0].arrived + self._timeout <= now):
            job = waits.popleft()
            if job.started is None:
                self._give_up(job)

    def _give_up(self, job: Job) -> None:
        job.refused, job.ended = "queue_timeout", job.arrived + self._timeout
        self.late.append(job)
        self._foreseen.pop(job.number, None)
        if job.number in self._footprints:
            self.engine.waiting.remove(job)
            self._held -= self._footprints.pop(job.number)
            self._fresh.pop(job.number, None)
            self._awaited = [other for other in self._awaited if other is not job]
            self.lines.ended(job)
        else:
            self.lines.remove(job)
