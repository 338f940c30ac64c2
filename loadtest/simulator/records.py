"""What single steps took: the file that a calibration reads, one JSON object a line.

    {"prefill": 64, "decodes": 3, "context": 812, "attention": 4096, "seconds": 0.0123}

`attention` is the sum over chunks of chunk × (2 × context before + chunk).
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.errors import UsageError
from loadtest.simulator.step_time import Work


@dataclass(frozen=True)
class Record:
    """One step of an engine that had the next one to do at once."""

    work: Work
    seconds: float


def write(path: Path, records: Iterable[Record]) -> None:
    """One a line."""
    lines = (json.dumps(asdict(r.work) | {"seconds": r.seconds}) for r in records)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read(path: Path) -> list[Record]:
    """All of a file.

    Raises:
        UsageError: it cannot be read, or a line is no record.

    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return [_record(path, number, line) for number, line in enumerate(lines, start=1) if line]


def _record(path: Path, number: int, line: str) -> Record:
    try:
        row = json.loads(line)
        taken = float(row.pop("seconds"))
        work = Work(**{name: int(value) for name, value in row.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}, line {number}: {type(error).__name__}: {error}") from None
    if not taken > 0 or min(asdict(work).values()) < 0:
        raise UsageError(f"{path}, line {number}: a step takes time, and nothing is negative")
    return Record(work, taken)
