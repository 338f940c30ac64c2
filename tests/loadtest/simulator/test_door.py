"""The front door before an engine model: bounds, timeout, turns, prediction, lookahead."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admission import door as admission
from app.admission import forecast
from app.admission.gate import Room, lookahead_of
from app.workload import Capacity, DecodingStats
from loadtest.simulator.door import Door, DoorSettings, Outlook
from loadtest.simulator.engine import Engine, EngineSettings
from loadtest.simulator.job import Job
from loadtest.simulator.replica import Replica
from loadtest.simulator.ticks import seconds, ticks
from tests.loadtest.simulator.factory import TIME, Ask, asks, jobs_of, settings, unhurried

SMALL = EngineSettings(4, 64, 100, 16)


def play(replica: Replica, jobs: list[Job]) -> list[Job]:
    ended = []
    for job in jobs:
        ended += replica.advance(job.arrived)
        replica.offer(job, job.arrived)
    return ended + replica.advance(ticks(10**6))


def poisson(
    rate: float, count: int, *, prompt: int = 16, output: int = 50, seed: int = 0
) -> list[Job]:
    at = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return [Job(n, prompt, output, ticks(float(t))) for n, t in enumerate(at)]


def ttfts(jobs: list[Job]) -> list[float]:
    return [seconds(job.first - job.arrived) for job in jobs if job.first is not None]


def test_what_is_over_the_bound_is_refused_at_once() -> None:
    replica = Replica(SMALL, TIME, DoorSettings(max_pending=3))
    jobs = [Job(n, 10, 5, 0) for n in range(9)]
    assert [replica.offer(job, 0) for job in jobs] == [True] * 7 + [False] * 2
    assert [job.refused for job in jobs[7:]] == ["queue_full"] * 2
    assert replica.gauges(0).pending == 7
    assert len(replica.advance(ticks(100))) == 7


def test_what_was_refused_counts_as_demand_for_as_long_as_in_the_service() -> None:
    replica = Replica(SMALL, TIME, DoorSettings(max_pending=3))
    for number in range(9):
        replica.offer(Job(number, 10, 5, 0), 0)
    found = [replica.gauges(ticks(at)).refused for at in (0.0, admission.DEMAND_S)]
    assert found == [2, 2]
    assert replica.gauges(ticks(admission.DEMAND_S) + 1).refused == 0


def test_only_the_lookahead_waits_in_the_engine() -> None:
    replica = Replica(SMALL, TIME, DoorSettings())
    for job in [Job(n, 10, 5, 0) for n in range(9)]:
        replica.offer(job, 0)
    replica.advance(1)
    assert len(replica.engine.running) == 4
    assert len(replica.engine.waiting) == 2 == lookahead_of(4)
    gauges = replica.gauges(1)
    assert (gauges.pending, gauges.running) == (5, 4)


def test_what_was_not_started_in_time_leaves() -> None:
    replica = Replica(SMALL, TIME, DoorSettings(queue_timeout_s=0.2))
    jobs = [Job(n, 10, 60, 0) for n in range(12)]
    ended = play(replica, jobs)
    late = [job for job in jobs if job.refused]
    assert len(ended) == 4
    assert {job.refused for job in late} == {"queue_timeout"}
    assert {job.ended for job in late} == {ticks(0.2)}
    assert replica.unfinished == 0


def test_with_a_limit_what_is_accepted_is_in_time() -> None:
    slo = DoorSettings(ttft_slo_s=0.5, limits_known=True)
    # A slot yields about 190 tokens/s, so 4 slots serve about 15 of 50 tokens: three times that.
    jobs = poisson(45, 1500)
    found = {
        name: (play(Replica(SMALL, TIME, door), arrivals), arrivals)
        for name, door, arrivals in (
            ("none", None, jobs),
            ("slo", slo, poisson(45, 1500)),
            ("plain", DoorSettings(), poisson(45, 1500)),
        )
    }
    late = {name: np.mean(np.array(ttfts(ended)) > 0.5) for name, (ended, _) in found.items()}
    assert late["slo"] < 0.05
    assert late["none"] > 0.9
    assert late["plain"] > 0.5
    refused = Counter(job.refused for job in found["slo"][1])
    assert refused["overloaded"] > 800
    # It refuses no more than it must: the engine is as busy as without a door.
    assert found["slo"][0][-1].ended is not None
    assert len(found["slo"][0]) > 0.9 * 1500 / 3


def test_a_prediction_is_judged_by_the_first_token_and_not_by_the_last() -> None:
    replica = Replica(replace(SMALL, kv_blocks=10**5), TIME, DoorSettings())
    assert replica.door is not None
    for job in (Job(n, 10, 400, 0) for n in range(4)):
        replica.offer(job, 0)
    replica.advance(ticks(0.5))  # from now on something is known of the pace
    for job in (Job(n, 10, 40 if n == 4 else 4000, ticks(0.5)) for n in range(4, 12)):
        replica.offer(job, ticks(0.5))
    assert len(replica.advance(ticks(3.0))) == 5
    begun = [job for job in replica.engine.running if job.first is not None]
    assert len(begun) == 4
    assert len(replica.door.margin._errors) == 5


def test_tenants_share_by_tokens_and_not_by_how_often_they_ask() -> None:
    jobs = poisson(60, 1200)
    for job in jobs:
        job.tenant = "few" if job.number % 4 == 0 else "many"
    ended = play(Replica(SMALL, TIME, DoorSettings(max_pending=10**6, queue_timeout_s=600)), jobs)
    # "few" asks for 15/s, which is all that there is; half of that is its part.
    first = Counter(job.tenant for job in ended[:200])
    assert 0.4 < first["few"] / 200 < 0.6


def test_the_more_urgent_go_first() -> None:
    jobs = [Job(n, 10, 20, 0, priority=n % 2) for n in range(24)]
    ended = play(Replica(SMALL, TIME, DoorSettings(max_pending=100)), jobs)
    begun = sorted(ended, key=lambda job: (job.started, job.priority))
    # Four slots and a lookahead of two were given in order of arrival.
    assert [job.priority for job in begun[6:]] == [0] * 9 + [1] * 9


@unhurried
@given(
    st.integers(0, 8),
    st.integers(0, 4),
    st.integers(0, 3),
    st.booleans(),
    st.integers(1, 70),
    st.integers(1, 70),
)
def test_what_the_engine_takes_is_what_the_gate_would_hand_over(
    running: int, reported: int, fresh: int, preempted: bool, held: int, tokens: int
) -> None:
    engine = Engine(replace(SMALL, max_num_seqs=8, kv_blocks=10**6), TIME)
    door = Door(engine, DoorSettings())
    engine.running = [Job(n, held, 9) for n in range(running)]
    engine.waiting.extend(Job(100 + n, held, 9) for n in range(reported + fresh))
    door._fresh = {200 + n: Job(200 + n, held, 9) for n in range(fresh)}
    preempted = preempted and reported > 0
    if preempted:
        engine.waiting[0].preemptions = 1
    stats = DecodingStats(running + reported + fresh, running, reported, preempted=preempted)
    room = Room(Capacity(8, 64), stats, held * (reported + fresh), lookahead_of(8))
    assert door._takes(Job(999, tokens, 9)) == room.takes(1, tokens)


@unhurried
@given(
    st.integers(0, 60),
    st.booleans(),
    st.floats(0, 40),
    st.floats(0, 40),
    st.floats(0, 40),
    st.sampled_from([None, 0.5, 5.0]),
)
def test_who_is_refused_is_who_the_door_would_refuse(
    unfinished: int,
    at_once: bool,
    first_token_s: float,
    margin_s: float,
    room_s: float,
    slo_s: float | None,
) -> None:
    engine = Engine(replace(SMALL, max_num_seqs=8), TIME)
    door = Door(engine, DoorSettings(max_pending=40, queue_timeout_s=30.0, ttft_slo_s=slo_s))
    engine.running = [Job(n, 1, 1) for n in range(unfinished)]
    ours = door._refusal(Outlook(at_once, first_token_s, margin_s, room_s))
    bounds = admission.Bounds(48, 128, 8, 9, 30.0, slo_s, 429)
    theirs = admission.decide(
        1, forecast.Outlook(unfinished, at_once, first_token_s, margin_s, room_s), bounds
    )
    assert ours == (None if theirs is None else theirs.code)


@unhurried
@given(asks, settings, st.sampled_from([None, 0.05, 0.5]), st.sampled_from([0.1, 30.0]))
def test_each_request_ends_once(
    workload: list[Ask], engine: EngineSettings, slo: float | None, timeout: float
) -> None:
    jobs = jobs_of(workload)
    for job in jobs:
        job.tenant, job.priority = "ab"[job.number % 2], job.number % 3
    door = DoorSettings(max_pending=6, ttft_slo_s=slo, queue_timeout_s=timeout)
    replica = Replica(engine, TIME, door)
    ended = play(replica, jobs)
    assert {job.number for job in ended} == {job.number for job in jobs if job.refused is None}
    assert len(ended) == len({job.number for job in ended})
    assert replica.unfinished == 0
    assert replica.engine.blocks.free == engine.kv_blocks
    for job in jobs:
        assert job.ended is not None
        assert job.produced == (job.output if job.refused is None else 0)
        if job.refused is None:
            assert job.started is not None
            assert job.started - job.arrived <= ticks(timeout) + ticks(0.1)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_requests_the_same_times(seed: int) -> None:
    runs = [
        play(Replica(SMALL, TIME, DoorSettings(ttft_slo_s=0.3)), poisson(30, 400, seed=seed))
        for _ in range(2)
    ]
    assert [str(job) for job in runs[0]] == [str(job) for job in runs[1]]
