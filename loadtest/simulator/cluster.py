"""Replicas behind a router, and an autoscaler that watches them.

Events (a scrape, a sync, a pod that is ready) and arrivals are taken in order of time; between
them each replica is only moved when somebody looks at it.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from loadtest.simulator import hpa
from loadtest.simulator.autoscaler import Autoscaler, Controller, Samples, Seen
from loadtest.simulator.door import DoorSettings
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.job import Job
from loadtest.simulator.outcome import Outcome
from loadtest.simulator.pods import STARTS, Pod, Start, victims
from loadtest.simulator.replica import Replica
from loadtest.simulator.step_time import Coefficients, StepTime, Work
from loadtest.simulator.ticks import Ticks, seconds, ticks

Routing = Literal["round_robin", "least_loaded"]


@dataclass(frozen=True)
class ClusterSettings:
    """Everything but the load.

    Attributes:
        door: None: requests go to the engine as they come.
        replicas: at the beginning, ready.
        autoscaler: None: their number stays.
        drain_s: what a deleted pod has in hand is cut after it.

    """

    engine: EngineSettings
    coefficients: Coefficients
    door: DoorSettings | None = None
    replicas: int = 1
    autoscaler: Autoscaler | None = None
    start: Start = STARTS["typical"]
    drain_s: float = 120.0
    routing: Routing = "least_loaded"


@dataclass(frozen=True)
class Moment:
    """What is there after a sync, or every 15 s without; GPU-hours are those since the start."""

    at_s: float
    desired: int
    ready: int
    pending: int
    running: int
    gpu_hours: float


@dataclass
class Story:
    """What came of it.

    Attributes:
        gpu_hours: of all pods, from being asked for to being gone.
        moments: one for each sync, or every 15 s.

    """

    outcome: Outcome
    moments: list[Moment] = field(default_factory=list)
    gpu_hours: float = 0.0

    @property
    def peak(self) -> int:
        return max((moment.desired for moment in self.moments), default=0)

    @property
    def changes(self) -> int:
        """How often the number of replicas changed its direction."""
        return turns([moment.desired for moment in self.moments])


def turns(values: Iterable[int]) -> int:
    """Changes of direction."""
    moves = [b - a for a, b in itertools.pairwise(values) if a != b]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves))


class Cluster:
    """Plays a load; see `simulate`."""

    def __init__(self, given: ClusterSettings) -> None:
        self.given = given
        self.now: Ticks = 0
        self.pods: list[Pod] = []
        self.gone_for: Ticks = 0  # GPU time of pods that are gone
        self.story = Story(Outcome(ticks(given.coefficients.emit)))
        self._time = StepTime(given.coefficients)
        self._numbers = itertools.count()
        self._turn = 0
        self._most = Work(0, 0, 0, 0)
        self._order = itertools.count()
        self._events: list[tuple[Ticks, int, Callable[[], None]]] = []
        self._controller = Controller(given.autoscaler) if given.autoscaler else None
        for _ in range(given.replicas):
            self._create(Start(0.0, 0.0))
        if given.autoscaler is not None:
            self._at(ticks(given.autoscaler.sync_s), self._sync)
        else:
            self._at(ticks(hpa.SYNC_S), self._look)

    @property
    def replicas(self) -> int:
        """That are asked for."""
        return sum(pod.deleted is None for pod in self.pods)

    def play(self, jobs: Iterable[tuple[Ticks, Job]], until_s: float) -> Story:
        """Send each job at its time; what is in hand at the end is served to its end."""
        end = ticks(until_s)
        for at, job in jobs:
            self._until(at)
            self._send(job)
        self._until(end)
        self.story.gpu_hours = self._gpu_hours()
        self._events.clear()
        for pod in self.pods:
            self._move(pod, 10**30)
        return self.story

    def _gpu_hours(self) -> float:
        return seconds(self.gone_for + sum(pod.lived(self.now) for pod in self.pods)) / 3600

    @property
    def most(self) -> Work:
        """The most of each term that any step of any replica had."""
        return Work.most_of([self._most, *(pod.replica.engine.most for pod in self.pods)])

    # -- events

    def _at(self, at: Ticks, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))

    def _until(self, time: Ticks) -> None:
        while self._events and self._events[0][0] <= time:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = time

    def _send(self, job: Job) -> None:
        pod = self._route()
        if pod is None:
            job.refused, job.ended = "no_replica", self.now
            self.story.outcome.add(job)
            return
        self._move(pod, self.now)
        if not pod.replica.offer(job, self.now):
            self.story.outcome.add(job)

    def _route(self) -> Pod | None:
        takers = [pod for pod in self.pods if pod.takes(self.now)]
        if not takers:
            return None
        self._turn += 1
        if len(takers) == 1:
            return takers[0]
        first = self._turn % len(takers)
        if self.given.routing == "round_robin":
            return takers[first]
        for pod in takers:
            if not pod.replica.is_quiet(self.now):
                self._move(pod, self.now)
        return min(takers[first:] + takers[:first], key=lambda pod: pod.replica.unfinished)

    def _move(self, pod: Pod, until: Ticks) -> None:
        for job in pod.replica.advance(until):
            self.story.outcome.add(job)
        for job in pod.replica.late():
            self.story.outcome.add(job)

    # -- pods

    def _create(self, start: Start) -> None:
        number = next(self._numbers)
        running = self.now + ticks(start.pending_s)
        scaler = self.given.autoscaler
        replica = Replica(self.given.engine, self._time, self.given.door)
        ready = running + ticks(start.loading_s)
        samples = Samples(scaler.keep_s if scaler else 0.0)
        pod = Pod(number, self.now, running, ready, replica, samples)
        self.pods.append(pod)
        if scaler is not None:
            # Scrapes of pods are spread over the interval; the golden ratio spreads any number.
            offset = ticks(scaler.scrape_s * (number * 0.6180339887498949 % 1))
            self._at(running + offset, lambda: self._scrape(pod, ticks(scaler.scrape_s)))

    def _scrape(self, pod: Pod, every: Ticks) -> None:
        if pod.gone is not None:
            return
        self._move(pod, self.now)
        pod.samples.add(self.now, pod.replica.gauges(self.now))
        self._at(self.now + every, lambda: self._scrape(pod, every))

    def _delete(self, pod: Pod) -> None:
        pod.deleted = self.now
        self._at(self.now, lambda: self._drain(pod))

    def _drain(self, pod: Pod) -> None:
        """Look once a second whether a deleted pod is done."""
        assert pod.deleted is not None
        self._move(pod, self.now)
        out_of_time = self.now >= pod.deleted + ticks(self.given.drain_s)
        if pod.replica.unfinished and not out_of_time:
            self._at(self.now + ticks(1.0), lambda: self._drain(pod))
            return
        for job in pod.replica.cut(self.now):
            self.story.outcome.add(job)
        pod.gone = self.now
        self.gone_for += pod.lived(self.now)
        self._most = self.most
        self.pods.remove(pod)

    # -- the autoscaler

    def _sync(self) -> None:
        assert self._controller is not None
        replicas = self.replicas
        seen = [Seen(pod.seen(self.now), pod.samples) for pod in self.pods]
        wanted = self._controller.sync(self.now, replicas, seen)
        for _ in range(wanted - replicas):
            self._create(self.given.start)
        for pod in victims(self.pods, max(0, replicas - wanted), self.now):
            self._delete(pod)
        self._note(wanted)
        self._at(self.now + ticks(self._controller.given.sync_s), self._sync)

    def _look(self) -> None:
        """What a sync would note, where nothing scales."""
        self._note(self.replicas)
        self._at(self.now + ticks(hpa.SYNC_S), self._look)

    def _note(self, desired: int) -> None:
        pending = running = 0
        for pod in self.pods:
            self._move(pod, self.now)
            gauges = pod.replica.gauges(self.now)
            pending += gauges.pending
            running += gauges.running
        ready = sum(pod.takes(self.now) for pod in self.pods)
        self.story.moments.append(
            Moment(seconds(self.now), desired, ready, pending, running, self._gpu_hours())
        )


def simulate(given: ClusterSettings, jobs: Iterable[Job], until_s: float) -> Story:
    """Play a load on a cluster.

    Args:
        given: the cluster.
        jobs: in order of arrival; they are changed.
        until_s: the end of what counts for GPU-hours, at or after the last arrival.

    """
    return Cluster(given).play(accepted(jobs, given.coefficients), until_s)


def accepted(jobs: Iterable[Job], coefficients: Coefficients) -> Iterator[tuple[Ticks, Job]]:
    """When each has passed the front end, in that order: a long prompt takes longer to read."""
    least, each = ticks(coefficients.accept), ticks(coefficients.accept_token)
    coming: list[tuple[Ticks, int, Job]] = []
    for job in jobs:
        while coming and coming[0][0] <= job.arrived + least:
            at, _, first = heapq.heappop(coming)
            yield at, first
        heapq.heappush(coming, (job.arrived + least + each * job.prompt, job.number, job))
    for at, _, job in sorted(coming):
        yield at, job
