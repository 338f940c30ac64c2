"""The loads that a calibration is made from: prompts alone, decoding alone, and both together."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.real_engine import RealEngine
from loadtest.simulator.records import Record

DECODES = 24
"""Tokens of each answer of the decode grid."""


@dataclass(frozen=True)
class Batch:
    """Requests that are there at once: prompt tokens, output tokens of each."""

    asks: tuple[tuple[int, int], ...]


def grid(given: EngineSettings, longest: int, dice: np.random.Generator) -> Iterator[Batch]:
    """All batches of one pass, none of which is preempted."""
    room = given.kv_blocks * given.block_size
    prompt = min(longest, room) - DECODES
    for tokens in _doubling(8, prompt):
        yield Batch(((tokens, 1),))
    for count in _doubling(1, given.max_num_seqs):
        for context in (16, prompt // 4, prompt - 1):
            if count * (context + DECODES + given.block_size) <= room:
                yield Batch(((context, DECODES),) * count)
    for count in _doubling(2, given.max_num_seqs):
        share = min(prompt, room // count - DECODES - given.block_size)
        if share > 8:
            lengths = dice.integers(4, share, count).tolist()
            outputs = dice.integers(2, DECODES, count).tolist()
            yield Batch(tuple(zip(lengths, outputs, strict=True)))


def _doubling(first: int, last: int) -> list[int]:
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last]


def measure(
    engine: RealEngine, batches: Iterator[Batch], dice: np.random.Generator
) -> list[Record]:
    """One record for each step; between two of a batch the engine has always more to do."""
    records = []
    for batch in batches:
        for number, (prompt, output) in enumerate(batch.asks):
            engine.add(number, dice.integers(0, engine.vocabulary, prompt).tolist(), output)
        last = time.perf_counter()
        while not engine.idle:
            engine.step()
            now = time.perf_counter()
            records.append(Record(engine.work, now - last))
            last = now
    return records
