"""The result of a run: what is measured, what it was measured with, and whether to believe it.

On disk it is one JSON file. While a run goes on, its records are appended to `NAME.partial.jsonl`
beside it, so that a run that was killed leaves what it had; `load` reads both.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from loadtest import files, metrics, settings
from loadtest.errors import UsageError
from loadtest.record import Outcome, Record
from loadtest.settings import Run
from loadtest.verdict import Grade, Harness, Verdict, judge

SCHEMA = 1
PARTIAL = ".partial.jsonl"
NOT_JUDGED = Verdict(Grade.INVALID, ("not judged",))
_BULKY = ("gaps", "detail", "retry_after_s", "request_id", "status")


@dataclass(frozen=True)
class Gauges:
    """What the server said of itself while it was measured.

    Attributes:
        at: seconds since the start of the run, one per scrape.
        series: name to values, as long as `at`; None where a scrape lacked it.

    """

    at: list[float] = field(default_factory=list)
    series: dict[str, list[float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One run, complete or not.

    Attributes:
        run: its settings.
        started_at: wall clock, UTC.
        environment: the client's machine and versions, the server's identity.
        window: (start, end) of what is measured, seconds since the start of the run.
        records: every request, warm-up included; times in seconds since the start of the run.
        harness: what the client measured of itself.
        gauges: the server's, if it has any.
        prefix_cache_hit_rate: of the tokens the server looked up; None where it does not tell.
        notes: what a reader should know and no number says.
        probes: by path: sent, failed, and percentiles of their seconds.
        summary: `metrics.summary` of the window; by tenant too where there are several.
        verdict: whether to believe it.

    """

    run: Run
    started_at: datetime
    environment: Mapping[str, Any]
    window: tuple[float, float]
    records: Sequence[Record]
    harness: Harness
    gauges: Gauges = field(default_factory=Gauges)
    prefix_cache_hit_rate: float | None = None
    notes: Sequence[str] = ()
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    summary: Mapping[str, Any] = field(default_factory=dict)
    verdict: Verdict = NOT_JUDGED

    @property
    def measured(self) -> list[Record]:
        """The requests that the plan has in the window."""
        start, end = self.window
        return [record for record in self.records if start <= record.intended <= end]

    def dump(self) -> dict[str, Any]:
        """As JSON types; the records as columns."""
        kept = [_dump_record(record, self.run.keep_records) for record in self.records]
        return {
            "schema": SCHEMA,
            "settings": settings.dump(self.run),
            "started_at": self.started_at.isoformat(timespec="seconds"),
            "environment": dict(self.environment),
            "verdict": {
                "grade": self.verdict.grade.value,
                "reasons": list(self.verdict.reasons),
            },
            "window_s": list(self.window),
            "summary": dict(self.summary),
            "harness": dataclasses.asdict(self.harness),
            "gauges": dataclasses.asdict(self.gauges),
            "prefix_cache_hit_rate": self.prefix_cache_hit_rate,
            "notes": list(self.notes),
            "probes": dict(self.probes),
            "records": {name: [row[name] for row in kept] for name in (kept[0] if kept else ())},
        }

    def save(self, path: Path) -> None:
        """Write it to `path`, all at once."""
        draft = path.with_name(path.name + ".draft")
        draft.write_text(json.dumps(self.dump(), allow_nan=False) + "\n", encoding="utf-8")
        draft.replace(path)


def _dump_record(record: Record, whole: bool) -> dict[str, Any]:
    row = dataclasses.asdict(record)
    row["outcome"] = record.outcome.value
    return row if whole else {name: row[name] for name in row if name not in _BULKY}


def load(path: Path) -> Result:
    """A result, or what a killed run left of one.

    Raises:
        UsageError: it is neither.

    """
    try:
        if path.name.endswith(PARTIAL):
            return _load_partial(path)
        return _load(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a result of this harness: {error!r}") from None


def _load(found: Mapping[str, Any]) -> Result:
    if found["schema"] != SCHEMA:
        raise ValueError(f"schema {found['schema']}, not {SCHEMA}")
    columns = found["records"]
    rows = zip(*columns.values(), strict=True)
    return Result(
        run=settings.load(found["settings"]),
        started_at=datetime.fromisoformat(found["started_at"]),
        environment=found["environment"],
        window=(found["window_s"][0], found["window_s"][1]),
        records=[_record(dict(zip(columns, row, strict=True))) for row in rows],
        harness=Harness(**found["harness"]),
        gauges=Gauges(**found["gauges"]),
        prefix_cache_hit_rate=found["prefix_cache_hit_rate"],
        notes=found["notes"],
        probes=found["probes"],
        summary=found["summary"],
        verdict=Verdict(Grade(found["verdict"]["grade"]), tuple(found["verdict"]["reasons"])),
    )


def conclude(result: Result) -> Result:
    """The result with its summary and verdict, from its records."""
    summary = metrics.summary(result.records, result.window, result.run.slo)
    names = [tenant.name for tenant in result.run.spec.tenants]
    if len(names) > 1:
        summary["tenants"] = {
            name: metrics.summary(
                [r for r in result.records if r.tenant == name], result.window, result.run.slo
            )
            for name in names
        }
    own = {tenant.name for tenant in result.run.spec.tenants if tenant.users}
    planned = [record for record in result.measured if record.tenant not in own]
    verdict = judge(result.measured, result.harness, planned)
    return dataclasses.replace(result, summary=summary, verdict=verdict)


def _record(row: Mapping[str, Any]) -> Record:
    gaps = [(float(gap), int(tokens)) for gap, tokens in row.get("gaps") or ()]
    return Record(**{**row, "outcome": Outcome(row["outcome"]), "gaps": gaps})


def _load_partial(path: Path) -> Result:
    with path.open(encoding="utf-8") as lines:
        head = json.loads(next(lines))
        rows = list(_whole_lines(lines))
    run = settings.load(head["settings"])
    records = [_record(row) for row in rows]
    last = max((r.ended or r.intended for r in records), default=0.0)
    return conclude(
        Result(
            run=run,
            started_at=datetime.fromisoformat(head["started_at"]),
            environment=head["environment"],
            window=(min(run.warmup_s, last), last),
            records=records,
            harness=Harness(open_loop=run.spec.load.kind != "closed", interrupted=True),
            notes=["the run was killed: requests that were in flight then are missing"],
        )
    )


def _whole_lines(lines: IO[str]) -> Iterator[dict[str, Any]]:
    """All lines but one that was being written when the run was killed."""
    for line in lines:
        if line.endswith("\n"):
            yield json.loads(line)


class Draft:
    """The place of a result that is being made: its name is taken, its records are on disk."""

    def __init__(
        self, directory: Path, run: Run, started_at: datetime, environment: Mapping[str, Any]
    ) -> None:
        self._partial = files.create(directory, run.name, PARTIAL, becomes=".json")
        self._out = self._partial.open("a", encoding="utf-8")
        self._whole = run.keep_records
        self._written = False
        head = {
            "schema": SCHEMA,
            "settings": settings.dump(run),
            "started_at": started_at.isoformat(timespec="seconds"),
            "environment": dict(environment),
        }
        self._out.write(json.dumps(head) + "\n")
        self._out.flush()

    def add(self, records: Sequence[Record]) -> None:
        """Records with their times since the start of the run."""
        self._written = self._written or bool(records)
        self._out.writelines(json.dumps(_dump_record(r, self._whole)) + "\n" for r in records)
        self._out.flush()

    def finish(self, result: Result) -> Path:
        """The whole result takes the place of the partial one."""
        path = self._partial.with_name(self._partial.name.removesuffix(PARTIAL) + ".json")
        result.save(path)
        self._out.close()
        self._partial.unlink()
        return path

    def discard(self) -> None:
        """Nothing is left if nothing was sent; else what is there stays."""
        self._out.close()
        if not self._written:
            self._partial.unlink(missing_ok=True)
