"""A process that sends its part of a plan. It gets a job and a start time, and hands back records.

It tells its news over one pipe: an empty `Progress` when it is ready, then batches of records, the
last of them with what the process measured of itself. Over the other come its orders: the start
time, and then anything, or the end of the pipe, which means: stop. Two pipes: the event loop
makes the one that it listens to non-blocking, and a large batch would not go through it.
"""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import isfinite
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvloop

from loadtest.client import Ask, Client
from loadtest.plan import Planned, Tenant
from loadtest.prompts import Ruler, text
from loadtest.record import Record
from loadtest.settings import Run

REPORT_EVERY_S = 0.25
SAMPLE_EVERY_S = 0.02
MAX_REQUESTS = 10**9
"""No plan has more: the indices of a plan that starts over go on from here."""


@dataclass(frozen=True)
class Job:
    """What a worker is to do.

    Attributes:
        planned: its part of the plan.
        ruler: how many words a prompt of n tokens has.
        concurrency: of its part of a closed loop; None: open loop, every request at its time.
        end_s: closed loops send nothing later than this, and start their plan over until then;
            infinite: they end with their plan.
        users: what the users of a tenant that has its own send, beside the load.

    """

    run: Run
    model: str
    planned: Sequence[Planned]
    ruler: Ruler
    concurrency: int | None = None
    end_s: float = float("inf")
    users: Mapping[str, Sequence[Planned]] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """What a worker did to its machine: share of one core, and 99th percentile of loop lag."""

    cpu_share: float
    loop_lag_p99_s: float


@dataclass(frozen=True)
class Progress:
    """Records that ended since the last one; the last one has `load`."""

    records: list[Record] = field(default_factory=list)
    sent: int = 0
    load: Load | None = None


def main(job: Job, news: Connection, orders: Connection) -> None:
    """The process: lives until its plan is done, it is told to stop, or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    try:
        news.send(Progress())
        start: float = orders.recv()
        uvloop.run(_Worker(job, news, orders, start).work())
    except (EOFError, BrokenPipeError):
        os._exit(1)


class _Worker:
    def __init__(self, job: Job, news: Connection, orders: Connection, start: float) -> None:
        self._job = job
        self._news = news
        self._orders = orders
        self._start = start
        self._tenants = {tenant.name: tenant for tenant in job.run.spec.tenants}
        self._open: set[asyncio.Task[object]] = set()
        self._ended: list[Record] = []
        self._sent = 0
        self._lags: list[float] = []
        self._begun = (time.process_time(), time.monotonic())
        self._cpu_share = 0.0

    async def work(self) -> None:
        sending = asyncio.create_task(self._send_all())
        asyncio.get_running_loop().add_reader(self._orders.fileno(), sending.cancel)
        helpers = [asyncio.create_task(self._watch_lag()), asyncio.create_task(self._report())]
        await asyncio.sleep(max(0.0, self._start - time.monotonic()))
        self._begun = (time.process_time(), time.monotonic())
        await asyncio.wait([sending])
        if not self._cpu_share:
            self._note_cpu()
        load = Load(
            self._cpu_share,
            float(np.percentile(self._lags, 99)) if self._lags else 0.0,
        )
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        self._flush(load)

    def _note_cpu(self) -> None:
        cpu, wall = self._begun
        self._cpu_share = (time.process_time() - cpu) / max(1e-9, time.monotonic() - wall)

    async def _send_all(self) -> None:
        target = self._job.run.target
        async with Client(target, self._job.model) as self._client:
            try:
                await asyncio.gather(self._load(), *self._users())
            finally:
                for task in self._open:
                    task.cancel()
                await asyncio.gather(*self._open, return_exceptions=True)

    # -- when

    async def _load(self) -> None:
        if self._job.concurrency is None:
            await self._open_loop()
        else:
            await self._closed_loop(self._job.planned, self._job.concurrency)

    def _users(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The loops of the tenants that have users of their own."""
        for name, planned in self._job.users.items():
            yield self._closed_loop(planned, self._tenants[name].users)

    async def _open_loop(self) -> None:
        """Every request at its time, however many are in flight; then wait for all of them."""
        for planned in self._job.planned:
            ask = self._ask(planned, self._start + planned.at)
            await asyncio.sleep(max(0.0, ask.intended - time.monotonic()))
            self._begin(self._send(ask))
        self._note_cpu()  # what follows is waiting, and would make the load look small
        if self._open:
            await asyncio.wait(self._open, timeout=self._job.run.drain_s)

    async def _closed_loop(self, planned: Sequence[Planned], concurrency: int) -> None:
        await asyncio.sleep(max(0.0, self._start - time.monotonic()))
        rest = _endless(planned) if isfinite(self._job.end_s) else iter(planned)
        await asyncio.gather(*[self._begin(self._user(rest)) for _ in range(concurrency)])

    def _begin(self, work: Coroutine[Any, Any, object]) -> "asyncio.Task[object]":
        """What is given up when the run is stopped."""
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    async def _user(self, rest: Iterator[Planned]) -> None:
        """Sends the next request when the last one has ended; one that was refused, when it may."""
        end = self._start + self._job.end_s
        for planned in rest:
            now = time.monotonic()
            if now >= end:
                return
            record = await self._send(self._ask(planned, now))
            if record.retry_after_s is not None:
                await asyncio.sleep(min(record.retry_after_s, max(0.0, end - time.monotonic())))

    def _ask(self, planned: Planned, intended: float) -> Ask:
        tenant: Tenant = self._tenants[planned.tenant]
        words = self._job.ruler.words(planned.prompt_tokens)
        prompt = text(words, planned.prompt_seed)
        return Ask(planned, prompt, intended, tenant.key, tenant.priority)

    async def _send(self, ask: Ask) -> Record:
        record = ask.record()
        self._sent += 1
        try:
            await self._client.fill(record, ask)
        finally:
            self._ended.append(record)
        return record

    # -- what is told

    async def _watch_lag(self) -> None:
        while True:
            due = time.monotonic() + SAMPLE_EVERY_S
            await asyncio.sleep(SAMPLE_EVERY_S)
            self._lags.append(time.monotonic() - due)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self._flush(None)

    def _flush(self, load: Load | None) -> None:
        ended, self._ended = self._ended, []
        for record in ended:
            _since(record, self._start)
        self._news.send(Progress(ended, self._sent, load))


def _endless(plan: Sequence[Planned]) -> Iterator[Planned]:
    """The plan over and over, with other prompts each time."""
    for turn in count():
        for planned in plan:
            yield replace(
                planned,
                index=planned.index + turn * MAX_REQUESTS,
                prompt_seed=planned.prompt_seed + turn,
            )


def _since(record: Record, start: float) -> None:
    """Its times from the start of the run."""
    record.intended -= start
    for name in ("sent", "first", "last", "ended"):
        moment = getattr(record, name)
        if moment is not None:
            setattr(record, name, moment - start)
