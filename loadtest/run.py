"""One run: a plan is drawn, workers send it, the server is watched, and the result judged."""

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx

from loadtest import machine, plan, prompts, worker
from loadtest.errors import UsageError
from loadtest.plan import Planned
from loadtest.prompts import Ruler
from loadtest.record import Outcome, Record
from loadtest.result import Draft, Result, conclude
from loadtest.scrape import Prober, Scraper
from loadtest.settings import Run, Target
from loadtest.verdict import Harness

PATIENCE_S = 30.0
STOPPING_S = 10.0
"""How long workers that were told to stop may take."""
STREAMED_SLOS = ("ttft", "tpot")


def execute(run: Run, directory: Path, progress: bool = True) -> tuple[Result, Path]:
    """Measure, and write the result into `directory`.

    Ctrl-C ends the run early: what is in flight is given up, and the result says so.

    Raises:
        UsageError: the plan is impossible, or the server cannot be measured.

    """
    planned = plan.draw(run.spec)
    end = _horizon(run, planned)
    _check(run, end)
    server = _Server(run)
    ruler = server.ruler()
    started_at, environment = datetime.now(UTC), _environment(server)
    run = replace(run, target=replace(run.target, model=server.model))
    draft = Draft(directory, run, started_at, environment)
    try:
        fleet = _Fleet(_jobs(run, server.model, planned, ruler, end))
        measured = _measure(fleet, draft, server, _Line(progress))
    except BaseException:
        draft.discard()
        raise
    result = conclude(
        Result(
            run=run,
            started_at=started_at,
            environment=environment,
            window=_window(run, end, measured),
            records=sorted(measured.records, key=lambda record: record.index),
            harness=measured.harness,
            gauges=measured.gauges.gauges(measured.start),
            prefix_cache_hit_rate=measured.gauges.hit_rate(),
            notes=_notes(run, ruler, measured.records),
            probes=measured.probes.summary(),
        )
    )
    return result, draft.finish(result)


# -- the plan


def _horizon(run: Run, planned: Sequence[Planned]) -> float:
    """When the plan ends: seconds; of a closed loop that its requests end, infinite."""
    load = run.spec.load
    if load.kind == "closed":
        return load.duration_s if load.requests is None else float("inf")
    if load.kind == "trace" or load.requests is not None:
        return planned[-1].at
    return load.step_s * len(load.rates) if load.kind == "steps" else load.duration_s


def _check(run: Run, end: float) -> None:
    if run.workers < 1:
        raise UsageError(f"--workers must be at least 1, not {run.workers}")
    if not 0 <= run.warmup_s < end:
        raise UsageError(f"--warmup {run.warmup_s:g} leaves nothing of a plan of {end:g} s")
    unseen = [name for name in STREAMED_SLOS if run.slo and name in run.slo.bounds]
    if unseen and not run.target.stream:
        raise UsageError(f"an SLO on {unseen[0]} needs streamed answers")


def _jobs(
    run: Run, model: str, planned: Sequence[Planned], ruler: Ruler, end: float
) -> list[worker.Job]:
    """Every n-th request to each of n workers, and its share of the users of a closed loop."""
    load, n = run.spec.load, run.workers
    closed = load.kind == "closed"
    if closed and (load.concurrency or 0) < n:
        raise UsageError(f"a concurrency of {load.concurrency} cannot be shared by {n} workers")
    return [
        worker.Job(
            run=run,
            model=model,
            planned=planned[k::n],
            ruler=ruler,
            users=plan.draw_users(run.spec) if k == 0 else {},
            end_s=end,
            concurrency=((load.concurrency or 0) + n - 1 - k) // n if closed else None,
        )
        for k in range(n)
    ]


def _window(run: Run, end: float, measured: "_Measured") -> tuple[float, float]:
    """What is measured: from the end of the warm-up to the end of the plan, or of the sending."""
    if run.spec.load.kind == "closed" and run.spec.load.requests is not None:
        end = max((record.intended for record in measured.records), default=0.0)
    if measured.harness.interrupted:
        end = min(end, measured.ended - measured.start)
    return min(run.warmup_s, end), end


def _notes(run: Run, ruler: Ruler, records: Sequence[Record]) -> list[str]:
    notes = []
    if ruler == Ruler():
        notes.append("the server gives no usage: a prompt's token is a word, lengths unchecked")
    given_up = sum(record.outcome is Outcome.CANCELLED for record in records)
    if given_up and run.drain_s is not None:
        notes.append(f"{given_up} answers had not ended {run.drain_s:g} s after the last send")
    good = [record for record in records if record.ok and record.first is not None]
    tokens = sum(record.output_tokens or 0 for record in good)
    chunks = sum(len(record.gaps) + 1 for record in good)
    if chunks and tokens > 1.05 * chunks:
        notes.append(f"{tokens / chunks:.2f} tokens in a chunk: inter-token times share its gap")
    return notes


# -- the server


class _Server:
    """Answers the questions that come before a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._target: Target = run.target
        key = self._target.key or next((t.key for t in run.spec.tenants if t.key), None)
        self.headers = dict(self._target.headers)
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        self.model = self._model()

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        url = self._target.root + path
        try:
            response = httpx.request(
                method, url, headers=self.headers, timeout=PATIENCE_S, trust_env=False, **options
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise UsageError(f"{url}: {type(error).__name__}: {error}") from None
        if response.status_code != 200:
            raise UsageError(f"{url}: status {response.status_code}: {_reason(response)}")
        try:
            return response.json()
        except ValueError:
            raise UsageError(f"{url}: its answer is not JSON") from None

    def _model(self) -> str:
        page = self._ask("GET", "/v1/models")
        try:
            served = [str(model["id"]) for model in page["data"]]
        except (KeyError, TypeError):
            raise UsageError(f"{self._target.root}: its /v1/models lists no models") from None
        wanted = self._target.model or (served[0] if served else None)
        if wanted not in served:
            raise UsageError(f"no model {wanted!r} there, only {', '.join(served) or 'none'}")
        return wanted

    def ruler(self) -> Ruler:
        """Measured with two short requests, which also show that the server answers at all."""
        counts = [self._prompt_tokens(words) for words in prompts.PROBES]
        if None in counts:
            return Ruler()
        return Ruler.fit((counts[0] or 0, counts[1] or 0))

    def _prompt_tokens(self, words: int) -> int | None:
        chat = self._target.endpoint == "chat"
        prompt = prompts.text(words, seed=words)
        question = (
            {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        )
        body = {"model": self.model, "max_tokens": 1, **self._target.extra, **question}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        usage = self._ask("POST", path, json=body).get("usage") or {}
        return usage.get("prompt_tokens")

    def alive(self) -> bool:
        with suppress(UsageError):
            return bool(self._ask("GET", "/v1/models"))
        return False

    def facts(self) -> dict[str, Any]:
        """What it says of its version; nothing if it does not."""
        with suppress(UsageError):
            return dict(self._ask("GET", "/version"))
        return {}

    def prober(self) -> Prober:
        return Prober(self._target.root, self._target.probes)

    def scraper(self) -> Scraper:
        return Scraper(self._target.metrics_url or f"{self._target.root}/metrics", self.headers)


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200].strip()


def _environment(server: _Server) -> dict[str, Any]:
    return {
        "client": machine.facts("aiohttp", "uvloop", "numpy"),
        "server": {"model": server.model, **server.facts()},
    }


# -- the measurement


@dataclass
class _Measured:
    start: float
    gauges: Scraper
    probes: Prober
    records: list[Record] = field(default_factory=list)
    harness: Harness = field(default_factory=Harness)
    ended: float = 0.0


class _Fleet:
    """The worker processes, ready to start."""

    def __init__(self, jobs: Sequence[worker.Job]) -> None:
        context = multiprocessing.get_context("spawn")
        self.open_loop = jobs[0].concurrency is None
        self.pipes: list[Connection] = []
        self._senders: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for job in jobs:
            pipe, news = context.Pipe(duplex=False)
            orders, sender = context.Pipe(duplex=False)
            process = context.Process(target=worker.main, args=(job, news, orders), daemon=True)
            process.start()
            news.close()
            orders.close()
            self.pipes.append(pipe)
            self._senders.append(sender)
            self._processes.append(process)

    def begin(self) -> float:
        """All at one moment, when the last of them is ready."""
        for pipe in self.pipes:
            pipe.recv()
        start = time.monotonic() + 0.1
        for sender in self._senders:
            sender.send(start)
        return start

    def stop(self) -> None:
        """Tell all to give up what is in flight."""
        for sender in self._senders:
            with suppress(OSError):
                sender.send("stop")

    def end(self) -> None:
        for process in self._processes:
            process.join(STOPPING_S)
            process.kill()


def _measure(fleet: _Fleet, draft: Draft, server: _Server, line: "_Line") -> _Measured:
    scraper, prober = server.scraper(), server.prober()
    measured = _Measured(0.0, scraper, prober)
    watch = _Watch(fleet, draft, measured, line)
    try:
        measured.start = fleet.begin()
        scraper.start()
        prober.start()
        interrupted = watch.to_the_end()
    finally:
        fleet.end()
    measured.ended = time.monotonic()
    scraper.stop()
    prober.stop()
    measured.harness = Harness(
        cpu_share=max((load.cpu_share for load in watch.loads), default=0.0),
        loop_lag_p99_s=max((load.loop_lag_p99_s for load in watch.loads), default=0.0),
        server_restarted=scraper.restarted() or not server.alive(),
        worker_lost=len(watch.loads) < len(fleet.pipes),
        open_loop=fleet.open_loop,
        interrupted=interrupted,
    )
    return measured


class _Watch:
    """Collects what the workers send until the last has ended."""

    def __init__(self, fleet: _Fleet, draft: Draft, measured: _Measured, line: "_Line") -> None:
        self._fleet, self._draft, self._measured, self._line = fleet, draft, measured, line
        self._sent = dict.fromkeys(fleet.pipes, 0)
        self._running = list(fleet.pipes)
        self.loads: list[worker.Load] = []

    def to_the_end(self) -> bool:
        """Whether the user cut it short; a second Ctrl-C is not waited for."""
        try:
            self._collect(float("inf"))
        except KeyboardInterrupt:
            self._fleet.stop()
            self._collect(time.monotonic() + STOPPING_S)
            return True
        finally:
            self._line.end()
        return False

    def _collect(self, deadline: float) -> None:
        while self._running and time.monotonic() < deadline:
            for pipe in wait(self._running, timeout=0.5):
                assert isinstance(pipe, Connection)
                self._take(pipe)
            now = time.monotonic() - self._measured.start
            self._line.show(now, sum(self._sent.values()), self._measured.records)

    def _take(self, pipe: Connection) -> None:
        try:
            news: worker.Progress = pipe.recv()
        except (EOFError, OSError):
            self._running.remove(pipe)
            return
        self._sent[pipe] = news.sent
        self._measured.records += news.records
        self._draft.add(news.records)
        if news.load is not None:
            self.loads.append(news.load)


class _Line:
    """The progress of a run on stderr: rewritten every second on a terminal, else a line in ten."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._tty = sys.stderr.isatty()
        self._next = 0.0
        self._counted, self._outcomes = 0, Counter[Outcome]()

    def show(self, now: float, sent: int, records: Sequence[Record]) -> None:
        if not self._wanted or now < self._next:
            return
        self._next = now + (1.0 if self._tty else 10.0)
        self._outcomes.update(record.outcome for record in records[self._counted :])
        self._counted = len(records)
        ok, rejected = self._outcomes[Outcome.OK], self._outcomes[Outcome.REJECTED]
        text = (
            f"{now:6.0f} s  sent {sent} ({sent / max(now, 1e-3):.1f}/s)  "
            f"in flight {sent - len(records)}  ok {ok}  rejected {rejected}  "
            f"failed {len(records) - ok - rejected}"
        )
        print(
            f"\r{text}\033[K" if self._tty else text, end="" if self._tty else "\n", file=sys.stderr
        )
        sys.stderr.flush()

    def end(self) -> None:
        if self._wanted and self._tty:
            print(file=sys.stderr)
