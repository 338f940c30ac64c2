"""Order, fairness and bounds of the queue, with a simulated engine and clock."""

import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.gate import Room, lookahead_of
from app.admission.reserve import Mix, most_of, reserve_of
from app.errors import QueueFull, QueueTimeout
from app.permit import Claim, NoCall
from app.workload import Capacity, DecodingStats
from tests.admission.simulated import STEP_S, World


@pytest.mark.parametrize(
    (
        "inside",
        "running",
        "waiting",
        "preempted",
        "unstarted_tokens",
        "sequences",
        "tokens",
        "takes",
    ),
    [
        (0, 0, 0, False, 0, 1, 10, True),
        (0, 0, 0, False, 0, 1, 9_999, True),  # larger than a step, and nothing else waits inside
        (0, 0, 0, False, 0, 99, 10, True),  # more than the slots: goes when nothing waits inside
        (1, 0, 0, False, 10, 1, 10, True),  # the first steps of a burst
        (15, 0, 0, False, 100, 1, 10, True),
        (1, 0, 0, False, 9_999, 1, 10, False),  # the step is full, lookahead or not
        (1, 0, 0, False, 1_000, 1, 10, True),
        (2, 0, 0, False, 9_999, 1, 10, False),  # beyond it, and the step is full
        (2, 0, 2, False, 20, 1, 10, False),  # the engine left some waiting: something else binds
        (16, 16, 0, False, 0, 1, 10, True),  # full: the lookahead
        (17, 16, 1, False, 10, 1, 10, True),
        (18, 16, 2, False, 20, 1, 10, False),
        (18, 16, 0, False, 20, 1, 10, False),  # the last report is older than what was handed
        (5, 4, 1, True, 10, 1, 10, False),  # a preempted sequence is first
        (0, 0, 0, True, 0, 1, 10, True),  # which has gone
    ],
)
def test_what_the_engine_takes(
    inside: int,
    running: int,
    waiting: int,
    preempted: bool,
    unstarted_tokens: int,
    sequences: int,
    tokens: int,
    takes: bool,
) -> None:
    stats = DecodingStats(inside, running, waiting, 0, 0.0, preempted)
    room = Room(Capacity(16, 1024), stats, unstarted_tokens, lookahead=2)
    assert room.takes(sequences, tokens) is takes


def test_a_lookahead_is_small_and_a_reserve_smaller_than_the_slots() -> None:
    assert [lookahead_of(n) for n in (1, 4, 16, 256)] == [2, 2, 2, 32]
    assert [reserve_of(n) for n in (1, 4, 16, 256)] == [0, 0, 2, 32]


async def test_the_engines_own_queue_stays_within_the_lookahead() -> None:
    world = World(slots=4, max_pending=100)
    requests = [world.send() for _ in range(60)]
    await world.run(5.0)
    assert all(request.ended_at for request in requests)
    assert world.peak_waiting <= lookahead_of(4)
    assert world.counts.finished == {"length": 60}


async def test_no_slot_is_idle_while_somebody_waits() -> None:
    world = World(slots=16, max_pending=200)
    dice = random.Random(0)
    for _ in range(200):
        world.send(length=dice.randrange(5, 60))
    await world.run(6.0)
    # Only the step in which several sequences end at once, and the first ones.
    assert world.idle_slot_steps < 0.02 * 16 * 6.0 / STEP_S


async def test_a_burst_is_handed_over_at_once() -> None:
    world = World(slots=16, step_tokens=1024)
    for _ in range(16):
        world.send(tokens=20)
    await world.settle()
    assert len(world.waiting) == 16


async def test_long_prompts_are_handed_over_one_step_at_a_time() -> None:
    world = World(slots=16, step_tokens=100)
    for _ in range(10):
        world.send(tokens=80)
    await world.run(1.0)
    assert world.peak_waiting <= lookahead_of(16)
    assert len(world.order) == 10


@pytest.mark.parametrize("length", [40, 160])
async def test_when_the_cache_binds_little_waits_inside(length: int) -> None:
    """Four of sixteen fit when they are whole; more do at the beginning."""
    cache = 4 * (16 + length)
    world = World(slots=16, max_pending=200, kv_tokens=cache, step_tokens=1024, wait_s=100.0)
    for n in range(80):
        world.send(tokens=16, length=length, priority=n % 2)
    await world.run(80 * length * STEP_S / 3)
    assert world.counts.finished == {"length": 80}
    assert world.peak_waiting <= lookahead_of(16)
    first = world.order[:40]
    # Those that came before any urgent one was there apart, urgent ones go first.
    assert sum(int(name[1:]) % 2 == 0 for name in first) >= 36


async def test_after_a_preemption_nothing_is_handed_over_until_the_queue_is_empty() -> None:
    world = World(slots=8, kv_tokens=320, step_tokens=1024)
    # Nothing is known yet, and the requests are longer than they say: too many are handed over.
    for _ in range(4):
        world.send(tokens=16, length=64)
    await world.settle()
    world.preempted = True
    world.reported = DecodingStats(0, 3, 1, 0, 0.9, preempted=True)
    late = world.send()
    await world.settle()
    assert late.name not in world.order
    await world.run(5.0)
    assert late.ended_at is not None


async def test_priority_goes_before_arrival() -> None:
    world = World(slots=1, max_pending=50)
    world.send(length=30)
    await world.run(0.1)
    low = [world.send(priority=5, length=3) for _ in range(3)]
    high = [world.send(priority=-1, length=3) for _ in range(3)]
    usual = [world.send(length=3) for _ in range(3)]
    await world.run(3.0)
    inside_already = set(world.order[:1])
    waited = [name for name in world.order if name not in inside_already]
    # What was handed to the lookahead before the others came stays there.
    lookahead = lookahead_of(1)
    rest = [r.name for r in (*high, *usual, *low) if r.name not in waited[:lookahead]]
    assert waited[lookahead:] == rest


async def test_a_low_class_is_not_starved() -> None:
    world = World(slots=2, max_pending=400, wait_s=10.0)
    low = [world.send(priority=1, length=10) for _ in range(10)]

    def flood(now: float) -> None:
        if world.ledger.unfinished < 60:
            world.send(priority=0, length=10)

    await world.run(9.9, flood)
    assert sum(request.first_at is not None for request in low) >= 5


def test_slots_are_kept_by_the_share_of_those_that_go_before() -> None:
    mix, now = Mix(), 0.0
    for n in range(1000):
        now = n / 10
        mix.granted(0 if n % 5 else -1, 1, now)
    assert mix.more_urgent(0, now) == pytest.approx(0.2, abs=0.02)
    assert [mix.reserve(p, 16, now) for p in (-1, 0, 1)] == [0, 4, 8]
    # What is needed does not depend on the slots; of a few, no more than a quarter is kept.
    assert [mix.reserve(0, n, now) for n in (1, 2, 4, 8, 64)] == [0, 0, 1, 4, 4]
    assert mix.reserve(0, 16, now + 120) == 0


def test_one_urgent_request_a_minute_keeps_nothing_more() -> None:
    mix = Mix()
    for n in range(100):
        mix.granted(0 if n % 20 else -1, 1, 3.0 * n)
        assert mix.reserve(0, 16, 3.0 * n) == 0


async def test_a_call_larger_than_what_is_not_kept_begins_all_the_same() -> None:
    world = World(slots=16, max_pending=100)
    for _ in range(200):
        world.gate.mix.granted(-1, 1, 0.0)
    urgent = world.send(priority=-1, length=400)
    await world.run(0.1)
    large = world.send(sequences=10, length=20)
    await world.run(1.0)
    assert urgent.ended_at is None
    assert large.ended_at is not None


async def test_what_is_kept_for_others_is_foreseen() -> None:
    world = World(slots=16, max_pending=100, slo_s=0.5)
    for _ in range(200):
        world.gate.mix.granted(-1, 1, 0.0)
    world.send(priority=-1, length=3)
    await world.run(0.1)
    low = [world.send(length=300) for _ in range(16 - most_of(16))]
    await world.run(0.1)
    assert all(request.first_at is not None for request in low)
    late = world.send(length=300)
    await world.run(0.1)
    assert late.failure is not None  # and not accepted for a slot that it does not get
    urgent = world.send(priority=-1, length=10)
    await world.run(0.2)
    assert urgent.first_at is not None


@pytest.mark.parametrize(("share", "used"), [(0.1, 0.68), (0.2, 0.55)])
async def test_urgent_requests_hardly_ever_wait_for_a_slot(share: float, used: float) -> None:
    """At twice what the engine serves, of a class that is that share of what comes."""
    dice = random.Random(2)
    world = World(slots=16, max_pending=64, slo_s=1.0)
    due, sent = [0.0], []

    def arrive(now: float) -> None:
        while due[0] <= now:
            priority = -1 if dice.random() < share else 0
            sent.append(world.send(priority=priority, length=dice.randrange(50, 150)))
            due[0] += dice.expovariate(32.0)

    await world.run(60.0, arrive)
    late = sent[100:]
    urgent = [r for r in late if r.priority < 0]
    waited = [r.first_at is None or r.first_at - r.at > 3 * STEP_S for r in urgent if r.at < 59]
    assert sum(waited) <= 0.01 * len(waited)
    served = sum(r.ended_at is not None and r.failure is None for r in sent)
    assert served >= used * 16 * 60


async def test_two_floods_share_the_tokens_served() -> None:
    world = World(slots=8, max_pending=200)

    def flood(now: float) -> None:
        for key, length, many in (("a", 10, 80), ("b", 40, 20)):
            waiting = sum(p.claim.key == key for p in world.ledger.permits)
            for _ in range(many - waiting):
                world.send(key=key, length=length)

    await world.run(30.0, flood)
    a, b = world.served["a"], world.served["b"]
    assert abs(a - b) <= 0.1 * max(a, b)


@pytest.mark.parametrize("more", [1.0, 3.0, 10.0])
async def test_two_floods_share_it_also_when_hardly_anyone_may_wait(more: float) -> None:
    """One asks so many times as often as the other, and that already for all of the engine."""
    served = await flooded({"a": 16.0 * more, "b": 16.0})
    assert abs(served["a"] - served["b"]) <= 0.1 * max(served.values())
    # Nothing is left idle for it.
    alone = await flooded({"a": 16.0 * (more + 1)})
    assert served.total() >= 0.95 * alone.total()


async def flooded(rates: dict[str, float]) -> Counter[str]:
    """Tokens served of keys that send at these rates, when 16 sequences a second are served."""
    dice = random.Random(1)
    world = World(slots=16, max_pending=64, slo_s=0.5)
    due = dict.fromkeys(rates, 0.0)

    def arrive(now: float) -> None:
        for key, rate in rates.items():
            while due[key] <= now:
                world.send(key=key, length=100)
                due[key] += dice.expovariate(rate)

    await world.run(30.0, arrive)
    return world.served


async def test_one_at_a_time_beside_a_flood_hardly_waits() -> None:
    flooded = World(slots=16, max_pending=200)
    waits = await beside_a_flood(flooded)
    assert sorted(waits)[len(waits) // 2] <= 3 * STEP_S


async def beside_a_flood(world: World, length: int = 20) -> list[float]:
    for _ in range(100):
        world.send(key="flood", length=100)
    alone = [world.send(key="one", length=length)]

    def keep(now: float) -> None:
        flood = sum(p.claim.key == "flood" for p in world.ledger.permits)
        for _ in range(100 - flood):
            world.send(key="flood", length=100)
        if alone[-1].ended_at is not None:
            alone.append(world.send(key="one", length=length))

    await world.run(20.0, keep)
    return [r.first_at - r.at for r in alone[3:] if r.first_at is not None]


async def test_a_newcomer_starts_at_the_active_minimum() -> None:
    world = World(slots=1, max_pending=100)
    for _ in range(30):
        world.send(key="old", length=5)
    await world.run(1.0)
    new = [world.send(key="new", length=5) for _ in range(10)]
    await world.run(0.6)
    # Idleness is not saved up: the old one's are served in turn with the newcomer's.
    assert 2 <= sum(r.first_at is not None for r in new) <= 7


async def test_what_waits_too_long_is_ended_by_its_own_timer() -> None:
    world = World(slots=1, wait_s=1.0)
    world.send(length=1_000)
    await world.run(0.1)
    late = [world.send() for _ in range(5)]
    await world.run(1.5)
    assert all(isinstance(request.failure, QueueTimeout) for request in late)
    assert world.counts.finished == {"timeout": 5}
    # Also those that were handed over, and waited inside the engine.
    assert not world.waiting


async def test_what_has_started_is_not_timed_out() -> None:
    world = World(slots=1, wait_s=0.5)
    request = world.send(length=200)
    await world.run(3.0)
    assert request.failure is None
    assert request.ended_at == pytest.approx(2.0, abs=0.1)


async def test_who_leaves_the_queue_never_starts() -> None:
    world = World(slots=1)
    world.send(length=100)
    await world.run(0.1)
    gone = [world.send() for _ in range(6)]
    await world.settle()
    for request in gone:
        assert request.task is not None
        request.task.cancel()
    stays = world.send()
    await world.run(2.0)
    assert stays.ended_at is not None
    assert not {r.name for r in gone} & set(world.order[1 + lookahead_of(1) :])
    assert world.counts.finished["aborted"] == 6


async def test_a_cancelled_ticket_that_is_next_is_no_obstacle() -> None:
    world = World(slots=1)
    world.send(length=10)
    await world.run(0.05)
    tickets = [world.send() for _ in range(5)]
    await world.settle()
    tickets[-2].task.cancel()  # type: ignore[union-attr]
    world.gate.pump()  # before its task has seen it
    await world.run(2.0)
    assert tickets[-1].ended_at is not None
    assert world.gate.lines.count == 0


async def test_many_samples_go_when_they_are_first() -> None:
    world = World(slots=4, max_pending=30)
    for _ in range(8):
        world.send(length=10)
    big = world.send(sequences=8, length=10)
    later = [world.send(length=10) for _ in range(4)]
    await world.run(3.0)
    assert big.ended_at is not None
    position = world.order.index(big.name)
    assert all(world.order.index(r.name) > position for r in later)


async def test_urgent_requests_displace_what_waits_when_the_queue_is_full() -> None:
    world = World(slots=2, max_pending=6)
    low = [world.send(priority=3, length=50) for _ in range(8)]
    await world.run(0.1)
    high = [world.send(priority=0) for _ in range(2)]
    await world.settle()
    assert [r.failure for r in high] == [None, None]
    displaced = [r for r in low if r.failure is not None]
    assert displaced == low[-2:]
    assert all(isinstance(r.failure, QueueFull) for r in displaced)
    same = world.send(priority=3)
    await world.settle()
    assert isinstance(same.failure, QueueFull)
    await world.run(5.0)
    assert world.counts.finished == {"displaced": 2, "length": 8}


async def test_a_key_with_less_than_its_part_gets_a_place_in_a_full_queue() -> None:
    world = World(slots=2, max_pending=6)
    flood = [world.send(key="flood", length=50) for _ in range(8)]
    await world.run(0.1)
    one = world.send(key="one")
    await world.settle()
    assert one.failure is None
    assert [r for r in flood if r.failure is not None] == flood[-1:]
    more = [world.send(key="flood") for _ in range(3)]
    await world.settle()
    assert all(isinstance(r.failure, QueueFull) for r in more)


Plan = list[tuple[int, int, int, int, int, bool]]
plans = st.lists(
    st.tuples(
        st.integers(0, 40),  # steps until the next
        st.integers(0, 2),  # key
        st.integers(-1, 1),  # priority
        st.integers(1, 5),  # sequences
        st.integers(1, 40),  # length
        st.booleans(),  # leaves half-way
    ),
    max_size=40,
)


@settings(max_examples=30, deadline=None)
@given(
    plans,
    st.sampled_from([0, 200, 1000]),
    st.sampled_from([None, 0.3]),
    st.sampled_from([None, 1, 1_000]),
)
async def test_whatever_comes_every_request_has_one_end(
    plan: Plan, kv_tokens: int, slo_s: float | None, lookahead: int | None
) -> None:
    world = World(4, 12, kv_tokens, slo_s=slo_s, wait_s=2.0, lookahead=lookahead)
    requests = []
    for steps, key, priority, sequences, length, leaves in plan:
        await world.run(steps * STEP_S)
        request = world.send(key=str(key), priority=priority, sequences=sequences, length=length)
        requests.append(request)
        if leaves and len(requests) > 3:
            task = requests[-3].task
            assert task is not None
            task.cancel()
    await world.until_idle(20.0)
    assert all(request.ended_at is not None for request in requests)
    assert (world.ledger.unfinished, world.gate.lines.count) == (0, 0)
    assert not world.ledger.permits
    assert not world.ledger.dispatches
    assert not world.waiting + world.running
    assert world.gate.stats().inside == 0
    left_alone = [r for r in requests if not r.cancelled and r.failure is None]
    assert all(r.first_at is not None for r in left_alone)


async def test_one_at_a_time_beside_a_flood_of_the_same_length_hardly_waits() -> None:
    """All of the flood's first batch ends in one step, with the other's request in it."""
    world = World(slots=16, max_pending=200)
    waits = await beside_a_flood(world, length=100)
    assert sorted(waits)[len(waits) // 2] <= 3 * STEP_S


async def test_more_keys_than_slots_use_all_slots() -> None:
    world = World(slots=16, max_pending=200)

    def keep(now: float) -> None:
        for key in range(20):
            waiting = sum(p.claim.key == str(key) for p in world.ledger.permits)
            for _ in range(3 - waiting):
                world.send(key=str(key), length=30)

    inside = []
    for _ in range(200):
        await world.run(STEP_S, keep)
        inside.append(len(world.running))
    assert sum(inside[50:]) / len(inside[50:]) > 15


async def test_samples_that_never_fit_the_cache_together_stop_nobody() -> None:
    world = World(slots=16, max_pending=200, kv_tokens=3_200, step_tokens=1024, wait_s=100.0)
    first = world.send(length=400)
    await world.run(0.2)
    big = world.send(sequences=16, tokens=16, length=300)
    small = [world.send(length=20) for _ in range(10)]
    await world.run(1.0)
    assert first.ended_at is None
    assert big.first_at is not None  # it did not wait for an empty engine
    await world.until_idle(60.0)
    assert world.counts.finished == {"length": 27}
    assert all(request.ended_at is not None for request in small)


async def test_nobody_is_displaced_for_a_request_that_is_refused_all_the_same() -> None:
    world = World(slots=2, max_pending=6, slo_s=0.05)
    world.send(key="flood", length=400)
    world.send(key="flood", length=400)
    await world.run(0.5)
    world.door.bounds = replace(world.door.bounds, slo_s=None, wait_s=1e9)
    waiting = [world.send(key="flood", length=400) for _ in range(6)]
    await world.settle()
    world.door.bounds = replace(world.door.bounds, slo_s=0.05)
    late = world.send(key="one", length=400)
    await world.settle()
    assert late.failure is not None
    assert [request.failure for request in waiting] == [None] * 6


async def test_deferred_sequences_are_passed_by_others() -> None:
    room = Room(Capacity(16, 1024), DecodingStats(4, 1, 0, 3), 0, lookahead=2)
    assert room.takes(1, 10)
    full = Room(Capacity(16, 1024), DecodingStats(18, 1, 0, 17), 0, lookahead=2)
    assert not full.takes(1, 10)


async def test_what_is_abandoned_is_charged_for_what_was_made() -> None:
    world = World(slots=2)
    request = world.send(key="a", tokens=10, length=100)
    await world.run(0.6)
    made = world.running[0].produced
    assert request.task is not None
    request.task.cancel()
    await world.settle()
    line = next(iter(world.gate.lines.all()))
    assert line.flow.served == 10 + 2 * made


async def test_calls_that_are_still_open_are_taken_back_with_their_request() -> None:
    """As when a client leaves: some of its calls are in the engine, and one waits."""

    class Begun(NoCall):
        def produced(self) -> int:
            return 5

    world = World(slots=4)
    line = world.gate.line_of(Claim())
    with world.ledger.permit("completions", 6) as permit:
        async with AsyncExitStack() as held:
            for _ in range(2):
                await held.enter_async_context(permit.dispatch(2, None, 3, Begun()))
            assert (line.waiting, line.flow.live) == (2, 4)
            calls = held.pop_all()
    assert permit.output_tokens == 10
    assert (line.waiting, line.flow.waiting, line.flow.live) == (0, 0, 0)
    assert world.ledger.unfinished == world.ledger.handed == 0
    await calls.aclose()  # later: it changes nothing
    assert (line.waiting, line.flow.live) == (0, 0)
    with world.ledger.permit("completions", 1) as after:
        assert after.undispatched == line.waiting == 1
