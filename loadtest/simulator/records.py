"""Records of an engine's steps, and what each says: the work of the step and its time.

A record holds what vLLM's statistics tell a stat logger; what it means is worked out here, so that
a file from a service that runs and a calibration of our own are read by the same code.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from loadtest.errors import UsageError
from loadtest.simulator.step_time import Work

SCHEMA = 1
Chunk: TypeAlias = tuple[int, int]
"""Tokens, and how many were computed before them."""


@dataclass(frozen=True)
class Record:
    """One step as the front end was told of it.

    Attributes:
        at: monotonic seconds at which it was told.
        prefill: tokens of prompts that were computed.
        decodes: sequences that made a further token.
        context: tokens that those had in the KV cache; None: it is not known.
        prompts: of each prompt that became complete: its tokens, and how many of them were cached.
        gap: since the step before, by the engine's clock, where a sequence decoded in both.
        running: sequences in the batch after it.
        waiting: in the engine's queue after it.
        preempted: sequences that lost their place before it.
        recomputed: tokens of answers that had to be computed again.
        engine: its index.

    """

    at: float
    prefill: int
    decodes: int
    context: int | None
    prompts: Sequence[tuple[int, int]]
    gap: float | None
    running: int
    waiting: int
    preempted: int = 0
    recomputed: int = 0
    engine: int = 0

    @property
    def idle(self) -> bool:
        """Nothing was left to do after it."""
        return self.running + self.waiting == 0


@dataclass(frozen=True)
class Observation:
    """The work of a step and its seconds, from the end of the one before to its own.

    Attributes:
        cell: what it is drawn and weighed with: of a grid, whose steps are alike, or of neighbours
            in a busy load; None: neither is known.

    """

    work: Work
    seconds: float
    cell: int | None = None


def observations(records: Iterable[Record]) -> Iterator[Observation]:
    """The steps of one engine, in order, without those whose work or time is not known."""
    before: Record | None = None
    chunks = Chunks()
    for record in records:
        work = chunks.work(record)
        seconds = _seconds(record, before)
        before = record
        clean = not (record.recomputed or record.preempted)
        if work is not None and clean and seconds is not None and seconds > 0:
            yield Observation(work, seconds)


def _seconds(record: Record, before: Record | None) -> float | None:
    """None: the engine slept before, and what wakes up is slow."""
    if record.gap is not None:
        return record.gap
    return None if before is None or before.idle else record.at - before.at


class Chunks:
    """Which tokens of which prompts a step computed, from when prompts become complete.

    vLLM tells how many tokens of prompts a step computed, and whose prompts were complete with it.
    First come, first served, one prompt at most is left in part: that of the one before.
    """

    def __init__(self) -> None:
        self._left = 0

    def work(self, record: Record) -> Work | None:
        """None: the record cannot be right, as when a prompt was given up in part."""
        chunks = self._chunks(record)
        if chunks is None or record.context is None or not record.prefill + record.decodes:
            return None
        attention = sum(n * (2 * before + n) for n, before in chunks)
        return Work(record.prefill, record.decodes, record.context, attention)

    def _chunks(self, record: Record) -> list[Chunk] | None:
        rest, left = record.prefill, self._left
        chunks: list[Chunk] = []
        for tokens, cached in record.prompts:
            n = tokens - cached - left
            chunks.append((n, cached + left))
            rest -= n
            left = 0
        if rest < 0 or any(n < 1 for n, _ in chunks):
            self._left = 0
            return None
        if rest:
            chunks.append((rest, left))
            left += rest
        self._left = 0 if record.idle else left
        return chunks


# -- files of them


def dump(record: Record) -> str:
    """A line."""
    return json.dumps(asdict(record))


def load(path: Path) -> tuple[Mapping[str, Any], list[list[Record]]]:
    """The head of a file, and the records of each engine.

    Raises:
        UsageError: it is not such a file.

    """
    try:
        head, *lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
        if head["kind"] != "steps" or head["schema"] != SCHEMA:
            raise UsageError(f"{path}: not records of steps of schema {SCHEMA}")
        found = [_record(line) for line in lines]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: not records of steps: {error!r}") from None
    engines = sorted({record.engine for record in found})
    return head, [[record for record in found if record.engine == one] for one in engines]


def _record(line: Mapping[str, Any]) -> Record:
    known = {field.name for field in fields(Record)}
    values = {name: value for name, value in line.items() if name in known}
    values["prompts"] = tuple((int(tokens), int(cached)) for tokens, cached in values["prompts"])
    return Record(**values)
