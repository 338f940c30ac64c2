"""One pod's worth: an engine, with our front door before it or without."""

from dataclasses import dataclass

from loadtest.simulator.door import Door, DoorSettings
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.fast_engine import FastEngine
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import StepTime
from loadtest.simulator.ticks import Ticks


@dataclass(frozen=True)
class Gauges:
    """What a scrape finds.

    Attributes:
        refused: by the front door in the last minute.

    """

    pending: int
    running: int
    kv_usage: float
    refused: int = 0

    @property
    def demand(self) -> int:
        """What is there, and what was refused."""
        return self.pending + self.running + self.refused

    @property
    def kv(self) -> float:
        """Per cent of the KV cache."""
        return 100 * self.kv_usage


class Replica:
    """Serves what it is offered. Each job's times are on the job itself."""

    def __init__(
        self, engine: EngineSettings, time: StepTime, door: DoorSettings | None = None
    ) -> None:
        self.engine = FastEngine(engine, time)
        self.door = None if door is None else Door(self.engine, door)
        self._quiet: Ticks | None = None

    @property
    def unfinished(self) -> int:
        return self.engine.unfinished if self.door is None else self.door.unfinished

    def offer(self, job: Job, at: Ticks) -> bool:
        """Whether it is accepted; `advance` has to have gone so far."""
        self._quiet = None
        if self.door is not None:
            return self.door.offer(job, at)
        self.engine.add(job, at)
        return True

    def advance(self, until: Ticks) -> list[Job]:
        """Make all steps that begin before `until`; those that ended in them."""
        self._quiet = None
        found: list[Job] = []
        engine, door = self.engine, self.door
        while engine.now < until and not engine.idle:
            ended = engine.run(until)
            found += ended
            if door is not None:
                door.stepped(ended)
        return found

    def is_quiet(self, until: Ticks) -> bool:
        """Whether `advance` so far would start and end nothing."""
        if self._quiet is None:
            self._quiet = self.engine.quiet()
        return until <= self._quiet

    def gauges(self, now: Ticks) -> Gauges:
        """As they are at a moment to which it was advanced."""
        waiting = refused = 0
        if self.door is not None:
            self.door.expire(now)
            waiting, refused = self.door.lines.count, self.door.refused(now)
        engine = self.engine
        pending, running = waiting + len(engine.waiting), len(engine.running)
        return Gauges(pending, running, engine.blocks.usage, refused)

    def late(self) -> list[Job]:
        """Those that were accepted and whose time was up since the last call."""
        if self.door is None or not self.door.late:
            return []
        found, self.door.late = self.door.late, []
        return found

    def cut(self, now: Ticks) -> list[Job]:
        """End all that is in hand; nothing may be offered afterwards."""
        found = [*self.engine.running, *self.engine.waiting]
        if self.door is not None:
            found += self.door.lines
        for job in found:
            job.refused, job.ended = "cut", now
        return found
