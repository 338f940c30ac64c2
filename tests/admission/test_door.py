"""What the door decides: a table, and the promises to clients."""

import asyncio
import random

import pytest

from app.admission.door import DEMAND_S, Bounds, Cost, Refused, counted, decide
from app.admission.forecast import REFUSED_S, Outlook
from app.errors import InvalidValue, Overload, Overloaded, QueueFull
from app.permit import Claim
from tests.admission.simulated import STEP_S, World

BOUNDS = Bounds(
    sequences=20,
    per_request=8,
    per_window=4,
    inputs=2048,
    wait_s=30.0,
    slo_s=None,
    reject_status=429,
)
STRICT = Bounds(20, 8, 4, 2048, 30.0, slo_s=1.0, reject_status=503)


@pytest.mark.parametrize(
    ("bounds", "cost", "unfinished", "at_once", "predicted_s", "margin_s", "refusal"),
    [
        (BOUNDS, 1, 0, True, 0.0, 0.0, None),
        (BOUNDS, 1, 19, False, 29.0, 0.0, None),
        (BOUNDS, 1, 20, False, 1.0, 0.0, QueueFull),
        (BOUNDS, 2, 19, False, 1.0, 0.0, QueueFull),
        (BOUNDS, 2, 18, False, 1.0, 0.0, None),
        (BOUNDS, 1, 5, False, 30.1, 0.0, Overloaded),
        # Without an SLO the wait may be as long as the timer allows, however uncertain it is.
        (BOUNDS, 1, 5, False, 29.0, 5.0, None),
        (STRICT, 1, 5, False, 0.9, 0.05, None),
        (STRICT, 1, 5, False, 0.9, 0.2, Overloaded),
        (STRICT, 1, 5, False, 1.1, 0.0, Overloaded),
        # A free slot: it would not be faster anywhere in the queue.
        (STRICT, 1, 5, True, 5.0, 5.0, None),
        (STRICT, 1, 20, True, 0.0, 0.0, QueueFull),
    ],
)
def test_decide(
    bounds: Bounds,
    cost: int,
    unfinished: int,
    at_once: bool,
    predicted_s: float,
    margin_s: float,
    refusal: type[Overload] | None,
) -> None:
    decided = decide(cost, Outlook(unfinished, at_once, predicted_s, margin_s), bounds)
    assert type(decided) is (refusal or type(None))
    if decided is not None:
        assert decided.status == bounds.reject_status
        assert decided.code == {QueueFull: "queue_full", Overloaded: "overloaded"}[type(decided)]


@pytest.mark.parametrize(
    ("bounds", "room_s", "predicted_s", "refused"),
    [
        (STRICT, 0.2, 0.7, False),
        (STRICT, 0.2, 0.9, True),
        # However long the others' prompts are, half of the limit is for all.
        (STRICT, 9.0, 0.4, False),
        (STRICT, 9.0, 0.6, True),
        (BOUNDS, 9.0, 29.0, False),
    ],
)
def test_room_for_long_prompts(
    bounds: Bounds, room_s: float, predicted_s: float, refused: bool
) -> None:
    outlook = Outlook(5, at_once=False, first_token_s=predicted_s, margin_s=0.0, room_s=room_s)
    assert (decide(1, outlook, bounds) is not None) == refused


async def test_while_requests_are_refused_a_short_prompt_leaves_room_for_a_long_one() -> None:
    world = World(slots=2, slo_s=1.0)
    gate = world.gate
    gate.pace.prefill(10, 0.01)
    gate.pace.prefill(2_000, 0.4)
    for tokens in (10, 2_000):
        world.send(tokens=tokens, length=1_000)
    await world.run(0.1)

    def room_s(tokens: int, priority: int = 0) -> float:
        return gate.outlook(Claim(priority=priority), tokens).room_s

    assert room_s(10) == 0.0
    # They would have to wait for ten seconds.
    refused = [world.send(tokens=2_000, length=1_000), world.send(tokens=9_000, length=1_000)]
    await world.settle()
    assert all(isinstance(each.failure, Overloaded) for each in refused)
    difference_s = gate.pace.start_s(2_000) - gate.pace.start_s(10)
    assert room_s(10) == pytest.approx(difference_s)
    # None for what would be late anywhere.
    assert room_s(10) > room_s(500) > room_s(2_000) == room_s(9_000) == 0.0
    # Whoever is more urgent goes before them.
    assert room_s(10, priority=1) == room_s(10) > room_s(10, priority=-1) == 0.0
    world.now += REFUSED_S + STEP_S
    assert room_s(10) == 0.0
    for each in world.ledger.permits:
        each.cut(Overloaded(429, 0.0))
    await world.settle()


async def test_a_refusal_for_the_sake_of_room_does_not_keep_the_room() -> None:
    world = World(slots=1, slo_s=1.0)
    gate = world.gate
    gate.pace.prefill(10, 0.01)
    gate.pace.prefill(2_000, 0.4)
    world.send(tokens=10, length=80)
    await world.run(0.1)
    gate.rooms.note(0, 2_000)
    gate.rooms.refused(0, world.now)
    short = world.send(tokens=10, length=1)
    await world.settle()
    assert isinstance(short.failure, Overloaded)
    world.now += REFUSED_S + STEP_S
    assert gate.outlook(Claim(), 10).room_s == 0.0


@pytest.mark.parametrize("wait_s", [0.0, 0.4, 7.0, 500.0])
def test_retry_advice_is_whole_seconds_within_bounds_and_spread(wait_s: float) -> None:
    seen = set()
    for _ in range(200):
        headers = QueueFull(429, wait_s).headers()
        assert 1 <= int(headers["retry-after"]) <= 60
        millis = int(headers["retry-after-ms"])
        assert 1_000 <= millis <= 60_000
        assert 0.75 * min(wait_s, 48) * 1000 - 1 <= millis
        seen.add(millis)
    assert len(seen) > 20


@pytest.mark.parametrize(
    ("cost", "sequences"),
    [
        (Cost(0), 0),
        (Cost(8), 8),
        (Cost(3, windowed=True), 3),
        (Cost(2048, windowed=True), 4),
    ],
)
def test_what_a_request_is_counted_for(cost: Cost, sequences: int) -> None:
    assert counted(cost, BOUNDS) == sequences


@pytest.mark.parametrize(
    ("cost", "bounds", "numbers"),
    [
        (Cost(9), BOUNDS, ("9", "8")),
        (Cost(2049, windowed=True), BOUNDS, ("2049", "2048")),
        (Cost(7), Bounds(6, 128, 2, 2048, 30.0, None, 429), ("7", "6")),
    ],
)
def test_what_could_never_be_accepted_is_told_with_both_numbers(
    cost: Cost, bounds: Bounds, numbers: tuple[str, str]
) -> None:
    with pytest.raises(InvalidValue) as raised:
        counted(cost, bounds)
    assert all(f" {number} " in raised.value.message.replace(";", " ;") for number in numbers)


def test_refused_sequences_are_demand_for_a_minute() -> None:
    now = 0.0
    refused = Refused(lambda: now)
    refused.add(3)
    now = 59.0
    refused.add(2)
    assert refused.sequences == 5
    now = DEMAND_S + 0.5
    assert refused.sequences == 2
    now = 1000.0
    assert refused.sequences == 0


async def test_of_twenty_at_once_six_are_accepted_with_two_slots_and_four_places() -> None:
    world = World(slots=2, max_pending=4)
    requests = [world.send(length=5) for _ in range(20)]
    await world.settle()
    assert sum(request.failure is None for request in requests) == 6
    assert all(isinstance(r.failure, QueueFull) for r in requests if r.failure is not None)
    await world.until_idle(5.0)
    assert world.counts.finished == {"length": 6}
    assert world.door.refused.sequences == 14


async def test_a_request_is_accepted_or_refused_as_a_whole() -> None:
    world = World(slots=2, max_pending=4)
    first = world.send(sequences=4)
    second = world.send(sequences=3)
    third = world.send(sequences=2)
    await world.settle()
    assert [type(r.failure) for r in (first, second, third)] == [type(None), QueueFull, type(None)]


@pytest.mark.parametrize("slots", [4, 16])
@pytest.mark.parametrize("overload", [1.5, 5.0])
@pytest.mark.parametrize("shape", ["fixed", "exponential"])
async def test_under_overload_nearly_all_that_is_accepted_is_in_time(
    slots: int, overload: float, shape: str
) -> None:
    """The simulated engine serves slots / (100 steps) sequences a second."""
    dice = random.Random(slots)
    world = World(slots=slots, max_pending=4 * slots, slo_s=0.5)
    rate = overload * slots / 1.0
    due = [0.0]
    requests = []

    def arrive(now: float) -> None:
        while due[0] <= now:
            mean = 100
            length = mean if shape == "fixed" else max(1, round(dice.expovariate(1 / mean)))
            requests.append(world.send(length=length))
            due[0] += dice.expovariate(rate)

    await world.run(30.0, arrive)
    counted_from = 5.0
    in_time = [r for r in requests if r.first_at is not None and r.at >= counted_from]
    late = [r for r in in_time if (r.first_at or 0) - r.at > 0.5]
    assert len(late) <= 0.05 * len(in_time)
    # Nearly all steps of nearly all slots went into answers that began in time.
    tokens = sum(r.length for r in in_time if r not in late)
    assert tokens >= 0.85 * slots * (30.0 - counted_from) / STEP_S
    tasks = [r.task for r in requests if r.task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_where_the_cache_binds_what_is_accepted_is_in_time_too() -> None:
    dice = random.Random(3)
    world = World(slots=16, max_pending=64, kv_tokens=4 * 128, step_tokens=1024, slo_s=0.5)
    due, requests = [0.0], []

    def arrive(now: float) -> None:
        while due[0] <= now:
            requests.append(world.send(tokens=16, length=dice.randrange(60, 110)))
            due[0] += dice.expovariate(3 * 4 / 0.85)

    await world.run(20.0, arrive)
    begun = [r for r in requests if r.first_at is not None and r.at > 3.0]
    late = [r for r in begun if (r.first_at or 0) - r.at > 0.5]
    assert len(begun) > 30
    assert len(late) <= 0.25 * len(begun)


async def test_a_burst_into_an_idle_engine_is_accepted_as_far_as_it_is_served_in_time() -> None:
    world = World(slots=16, max_pending=64, slo_s=0.5)
    for _ in range(16):
        world.send(length=100)
    await world.until_idle(5.0)
    burst = [world.send(length=100) for _ in range(80)]
    await world.until_idle(10.0)
    accepted = [r for r in burst if r.failure is None]
    assert 16 <= len(accepted) <= 20
    assert sum((r.first_at or 9) - r.at > 0.5 for r in accepted) <= 4
