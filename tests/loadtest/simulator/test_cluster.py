"""Replicas, router and autoscaler together: cold starts, drains, delays, and nothing lost."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator import hpa
from loadtest.simulator.autoscaler import Autoscaler, Controller, Gauge, Metric, Samples, Seen
from loadtest.simulator.cluster import (
    Cluster,
    ClusterSettings,
    Routing,
    accepted,
    simulate,
    turns,
)
from loadtest.simulator.door import DoorSettings
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.hpa_behavior import Behavior, Bounds
from loadtest.simulator.job import Job
from loadtest.simulator.outcome import Slo
from loadtest.simulator.pods import Pod, Start, victims
from loadtest.simulator.replica import Gauges, Replica
from loadtest.simulator.step_time import Coefficients, StepTime
from loadtest.simulator.ticks import ticks
from tests.loadtest.simulator.factory import TIME, few

# Each of 4 slots yields 20 tokens/s: of 40 tokens each, 2 requests/s.
STEADY = Coefficients(0.05, 0, 0, 0, 0)
ENGINE = EngineSettings(4, 64, 1000, 16)
PENDING = Autoscaler((Metric("pending", 2),), Bounds(1, 8, Behavior()))
SETTINGS = ClusterSettings(ENGINE, STEADY, autoscaler=PENDING, start=Start(5.0, 55.0))


def every(gap_s: float, count: int, *, prompt: int = 8, output: int = 40) -> list[Job]:
    return [Job(n, prompt, output, ticks(n * gap_s)) for n in range(count)]


@pytest.mark.parametrize("routing", ["round_robin", "least_loaded"])
def test_replicas_add_up(routing: Routing) -> None:
    given = ClusterSettings(ENGINE, STEADY, replicas=3, routing=routing)
    story = simulate(given, every(0.18, 500), 90)
    assert story.outcome.served == 500
    assert story.outcome.percentile("ttft", 99) < 0.5
    assert story.gpu_hours == pytest.approx(3 * 90 / 3600)
    # What a picture shows is there without an autoscaler too.
    assert [(m.at_s, m.desired, m.ready) for m in story.moments] == [
        (at, 3, 3) for at in range(15, 91, 15)
    ]
    assert all(m.running > 0 for m in story.moments)


def test_the_least_loaded_is_spared_what_a_turn_would_bring_it() -> None:
    jobs = every(0.5, 300)
    for job in jobs[::2]:
        job.output = 100
    turn = ClusterSettings(ENGINE, STEADY, replicas=2, routing="round_robin")
    served = [
        simulate(given, [replace(job) for job in jobs], 200).outcome.percentile("e2e", 90)
        for given in (turn, replace(turn, routing="least_loaded"))
    ]
    assert served[1] < served[0] / 2


def test_a_new_pod_takes_requests_after_its_cold_start_and_is_paid_for_from_the_first() -> None:
    story = simulate(SETTINGS, every(0.3, 600), 180)
    up = next(moment for moment in story.moments if moment.desired > 1)
    ready = next(moment for moment in story.moments if moment.ready > 1)
    # 3.3/s come and 2/s go: 15 s later 20 wait. The scrape, and with it the sync, is that old.
    assert up.at_s in (15, 30)
    assert ready.at_s == up.at_s + 60
    # The backlog has grown by (arrivals − what is served) × (detection + cold start).
    assert ready.pending == pytest.approx((1 / 0.3 - 2) * ready.at_s, rel=0.05)
    paid = sum(moment.desired for moment in story.moments) * 15 + 15
    assert story.gpu_hours == pytest.approx(paid / 3600, rel=0.1)


def test_a_pod_that_is_deleted_finishes_what_it_has() -> None:
    cluster = Cluster(replace(SETTINGS, replicas=3, drain_s=30.0))
    for job in every(0.0, 6, output=100):
        cluster._send(job)
    pod = cluster.pods[2]
    cluster._delete(pod)
    assert cluster.replicas == 2
    cluster._until(ticks(4.0))
    assert pod.gone is None
    cluster._until(ticks(7.0))
    assert pod.gone == ticks(5.0)
    assert len(cluster.story.outcome) == 2
    assert cluster.story.outcome.served == 2


def test_what_takes_too_long_is_cut() -> None:
    cluster = Cluster(replace(SETTINGS, replicas=1, drain_s=30.0, door=DoorSettings()))
    for job in every(0.0, 9, output=1000):
        cluster._send(job)
    cluster._delete(cluster.pods[0])
    cluster._until(ticks(40.0))
    assert cluster.pods == []
    # The door's own limit is 30 s as well: one of both ended each.
    assert cluster.story.outcome.refused.total() == 9
    assert cluster.story.outcome.refused["cut"] >= 4


def test_without_a_ready_pod_nothing_is_served() -> None:
    cluster = Cluster(replace(SETTINGS, replicas=0))
    cluster._send(Job(0, 8, 8))
    assert cluster.story.outcome.refused == {"no_replica": 1}


def pod(number: int, created: int, running: int, ready: int) -> Pod:
    return Pod(number, created, running, ready, Replica(ENGINE, TIME), Samples(0))


@pytest.mark.parametrize(
    ("count", "numbers"), [(1, [4]), (2, [4, 3]), (3, [4, 3, 2]), (4, [4, 3, 2, 1])]
)
def test_who_goes_first(count: int, numbers: list[int]) -> None:
    pods = [pod(1, 0, 0, 5), pod(2, 0, 0, 9), pod(3, 10, 11, 99), pod(4, 20, 99, 120)]
    assert [found.number for found in victims(pods, count, 50)] == numbers


@pytest.mark.parametrize(
    ("window_s", "at_s", "value"),
    [
        (0, 9, None),
        (0, 10, 1),
        (0, 44, 3),
        (0, 339.9, 3),
        (0, 341, None),
        (30, 40, 2.5),
        (30, 71, None),
    ],
)
def test_what_a_query_finds(window_s: float, at_s: float, value: float | None) -> None:
    samples = Samples(1000)
    for at, pending in ((10, 1), (25, 2), (40, 3)):
        samples.add(ticks(at), Gauges(pending, 0, 0.0))
    assert samples.read("pending", ticks(at_s), ticks(window_s)) == value


@pytest.mark.parametrize(
    ("gauge", "value"), [("pending", 3.0), ("running", 4.0), ("demand", 12.0), ("kv", 25.0)]
)
def test_what_a_metric_is_of_a_scrape(gauge: Gauge, value: float) -> None:
    samples = Samples(300.0)
    samples.add(0, Gauges(3, 4, 0.25, refused=5))
    assert samples.read(gauge, 0, 0) == value


def test_samples_that_no_query_finds_are_forgotten() -> None:
    samples = Samples(PENDING.keep_s)
    for at in range(0, 3000, 15):
        samples.add(ticks(at), Gauges(0, 0, 0.0))
    assert len(samples._samples) == 300 // 15 + 1


def test_keda_counts_what_drains_and_pods_do_not() -> None:
    """Two pods with 4 running each, one of them deleted; the target is 4 for each."""
    for source, replicas in (("pods", 1), ("total", 2)):
        metric = Metric("running", 4, source)  # type: ignore[arg-type]
        scaler = replace(PENDING, metrics=(metric,), scrape_s=5.0)
        cluster = Cluster(replace(SETTINGS, replicas=2, autoscaler=scaler))
        for job in every(0.0, 8, output=1200):
            cluster._send(job)
        cluster._until(ticks(14.0))
        cluster._delete(cluster.pods[1])
        cluster._until(ticks(16.0))
        assert cluster.story.moments[-1].desired == replicas


@pytest.mark.parametrize("source", ["pods", "total"])
def test_without_a_sample_nothing_is_changed(source: Literal["pods", "total"]) -> None:
    """Whatever the last recommendation was: an empty answer is not a load of 0."""
    controller = Controller(replace(PENDING, metrics=(Metric("running", 4, source),)))
    seen = [Seen(hpa.Pod(name), Samples(PENDING.keep_s)) for name in "abc"]
    assert [controller.sync(ticks(at), 3, seen) for at in (15.0, 330.0)] == [3, 3]


def test_a_long_prompt_arrives_later() -> None:
    jobs = [Job(0, 1000, 1, 0), Job(1, 10, 1, ticks(0.5)), Job(2, 10, 1, ticks(3.0))]
    slow = Coefficients(1, 0, 0, 0, 0, accept=0.1, accept_token=0.001)
    found = [(at, job.number) for at, job in accepted(jobs, slow)]
    assert found == [(ticks(0.61), 1), (ticks(1.1), 0), (ticks(3.11), 2)]


@pytest.mark.parametrize(
    ("values", "changes"),
    [([1, 2, 3], 0), ([1, 2, 2, 1], 1), ([3, 1, 1, 2, 1], 2), ([], 0), ([5], 0)],
)
def test_changes_of_direction(values: Sequence[int], changes: int) -> None:
    assert turns(values) == changes


@few
@given(
    st.integers(0, 2**32),
    st.sampled_from([None, DoorSettings(max_pending=5, ttft_slo_s=1.0, queue_timeout_s=3.0)]),
    st.sampled_from([1.0, 200.0]),
)
def test_arrived_is_served_and_refused_and_the_same_seed_is_the_same(
    seed: int, door: DoorSettings | None, drain_s: float
) -> None:
    given = replace(SETTINGS, door=door, drain_s=drain_s, start=Start(2.0, 8.0))
    stories = []
    for _ in range(2):
        dice = np.random.default_rng(seed)
        gaps = dice.exponential(0.1, 150) * np.where(np.arange(150) < 90, 1, 40)
        lengths = dice.integers(1, 60, (150, 2)).tolist()
        at = np.cumsum(gaps).tolist()
        jobs = [Job(n, lengths[n][0], lengths[n][1], ticks(at[n])) for n in range(150)]
        stories.append(simulate(given, jobs, at[-1] + 1))
        assert len(stories[-1].outcome) == 150
        assert all((job.refused is None) == (job.produced == job.output) for job in jobs)
        assert all(job.ended is not None for job in jobs)
    first, second = stories
    assert first.moments == second.moments
    assert first.gpu_hours == second.gpu_hours
    for name in ("at", "ttft", "tpot", "e2e"):
        assert first.outcome.column(name).tobytes() == second.outcome.column(name).tobytes()
    assert first.outcome.good(Slo(ttft=9)).sum() == second.outcome.good(Slo(ttft=9)).sum()


@few
@given(st.integers(0, 2**32))
def test_a_replica_that_is_quiet_need_not_be_moved(seed: int) -> None:
    dice = np.random.default_rng(seed)
    at = np.cumsum(dice.exponential(0.15, 120)).tolist()
    lengths = dice.integers(1, 60, 120).tolist()
    given_settings = ClusterSettings(ENGINE, STEADY, replicas=3)
    columns = []
    for quiet in (True, False):
        jobs = [Job(n, 8, lengths[n], ticks(at[n])) for n in range(120)]
        with pytest.MonkeyPatch.context() as patch:
            if not quiet:
                patch.setattr(Replica, "is_quiet", lambda self, until: False)
            columns.append(simulate(given_settings, jobs, at[-1] + 1).outcome.column("e2e"))
    assert sorted(columns[0].tolist()) == sorted(columns[1].tolist())


def test_time_of_the_model_is_in_seconds() -> None:
    assert StepTime(STEADY).step == ticks(0.05)
