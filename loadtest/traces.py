"""Real arrivals: Azure's CSV, Mooncake's JSONL, ServeGen's windows.

A malformed line is a UsageError that names the file and the line.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from loadtest import arrivals
from loadtest.errors import UsageError


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: seconds from its start, lengths in tokens (None: not in it)."""

    at: float
    prompt_tokens: int | None
    output_tokens: int | None
    tenant: str | None = None


def read(path: Path, kind: str, dice: np.random.Generator) -> list[Arrival]:
    """A trace in order of time, starting at 0.

    Args:
        path: the file.
        kind: `azure`, `mooncake` or `servegen`.
        dice: draws the arrivals of a trace that only has rates.

    Raises:
        UsageError: the file cannot be read as a trace of this kind.

    """
    try:
        reader = READERS[kind]
    except KeyError:
        raise UsageError(f"unknown trace kind {kind!r}: one of {', '.join(READERS)}") from None
    try:
        found = sorted(reader(path, dice), key=lambda arrival: arrival.at)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if not found:
        raise UsageError(f"{path}: no arrivals in it")
    start = found[0].at
    return [Arrival(a.at - start, a.prompt_tokens, a.output_tokens, a.tenant) for a in found]


def azure(path: Path, dice: np.random.Generator) -> Iterator[Arrival]:
    """TIMESTAMP (seven fractional digits), ContextTokens, GeneratedTokens."""
    for row in _rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        yield row.parse(
            lambda r: Arrival(
                _seconds(r["TIMESTAMP"]), _length(r["ContextTokens"]), _length(r["GeneratedTokens"])
            )
        )


def mooncake(path: Path, dice: np.random.Generator) -> Iterator[Arrival]:
    """One object a line: timestamp in ms, input_length, output_length."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _Row(path, number, line).parse(_from_mooncake)


def _from_mooncake(line: str) -> Arrival:
    row = json.loads(line)
    return Arrival(
        float(row["timestamp"]) / 1000, _length(row["input_length"]), _length(row["output_length"])
    )


def servegen(path: Path, dice: np.random.Generator) -> Iterator[Arrival]:
    """Windows of 600 s with a rate, a kind of gaps and its parameters, for each client.

    Weibull windows are rescaled so that their mean gap is 1/rate; others are gamma by their CV.
    """
    names = ("client", "window_start_s", "rate_rps", "cv", "pattern", "param1", "param2")
    for row in _rows(path, names):
        window = row.parse(_window)
        for at in _draw(window, dice):
            yield Arrival(window.start + float(at), None, None, window.client)


@dataclass(frozen=True)
class _Window:
    client: str
    start: float
    rate: float
    cv: float
    pattern: str
    shape: float


WINDOW_S = 600.0


def _window(row: dict[str, str]) -> _Window:
    return _Window(
        row["client"],
        float(row["window_start_s"]),
        float(row["rate_rps"]),
        float(row["cv"]),
        row["pattern"],
        float(row["param1"] or "nan"),
    )


def _draw(window: _Window, dice: np.random.Generator) -> arrivals.Times:
    if window.pattern.lower() == "weibull" and window.shape > 0:
        return arrivals.weibull(window.rate, window.shape, WINDOW_S, dice)
    return arrivals.gamma(window.rate, window.cv, WINDOW_S, dice)


@dataclass(frozen=True)
class _Row:
    path: Path
    number: int
    content: Any

    def parse(self, read_row: Callable[[Any], Any]) -> Any:
        try:
            return read_row(self.content)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(f"{self.path}, line {self.number}: {reason}") from None


def _rows(path: Path, names: tuple[str, ...]) -> Iterator[_Row]:
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in names if name not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(f"{path}, line 1: no column {missing[0]}")
        for row in reader:
            yield _Row(path, reader.line_num, row)


def _seconds(timestamp: str) -> float:
    # Python reads microseconds; the seventh digit of the trace is dropped.
    whole, _, fraction = timestamp.partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)  # only differences count
    return moment.timestamp() + float(f"0.{fraction or 0}")


def _length(value: Any) -> int:
    length = int(value)
    if length < 0:
        raise ValueError(f"a length below 0: {length}")
    return length


READERS: dict[str, Callable[[Path, np.random.Generator], Iterator[Arrival]]] = {
    "azure": azure,
    "mooncake": mooncake,
    "servegen": servegen,
}
