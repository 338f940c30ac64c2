"""The loads that a calibration measures: prompts, batches that decode, and lengths of a mixture."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.live import Planned, random_prompt

FIRST = 16
"""The shortest prompt."""
COMPANY, HEAD_START = 16, 0.01
"""Tokens that are made beside a prompt, and seconds before it: it finds an engine at work."""
SPARE = 8
"""Steps that a batch decodes beyond those that are wanted, while its last prompts are computed."""


@dataclass(frozen=True)
class Cell:
    """Equal requests that come together.

    Attributes:
        count: how many.
        prompt: tokens of each.
        output: tokens of each.
        company: tokens of a further answer, to a short prompt that comes first.

    """

    count: int
    prompt: int
    output: int
    company: int = 0

    def plan(self, dice: np.random.Generator, vocabulary: int) -> list[Planned]:
        """All of them at once."""
        first, at = [], 0.0
        if self.company:
            first = [Planned(at, random_prompt(dice, vocabulary, FIRST), self.company)]
            at = HEAD_START
        return first + [
            Planned(at, random_prompt(dice, vocabulary, self.prompt), self.output)
            for _ in range(self.count)
        ]


def doubling(first: int, last: int) -> Iterator[int]:
    """first, 2 first, 4 first … and last."""
    while first < last:
        yield first
        first *= 2
    yield last


def prefill(longest: int) -> list[Cell]:
    """One prompt at a time, to an engine that has nothing else."""
    return [Cell(1, tokens, 1) for tokens in doubling(FIRST, longest - 1)]


def beside(longest: int) -> list[Cell]:
    """The same beside a sequence that decodes: an engine that wakes up for it is slower."""
    return [Cell(1, tokens, 1, company=COMPANY) for tokens in doubling(FIRST, longest - 1)]


def decode(engine: EngineSettings, longest: int, steps: int) -> list[Cell]:
    """1, 2, 4 … sequences with short prompts and with long ones."""
    output = steps + SPARE
    found = []
    for count in doubling(1, engine.max_num_seqs):
        room = engine.kv_blocks // count * engine.block_size
        most = min(longest, room) - output
        if most < 2 * FIRST:
            break
        found += [Cell(count, FIRST, output), Cell(count, most // 2, output)]
    return found


def exponential(
    count: int, prompt: int, output: int, longest: int, dice: np.random.Generator
) -> list[tuple[int, int]]:
    """Prompts and answers of exponential lengths, that both fit into the longest."""
    prompts = np.rint(dice.exponential(prompt, count)).astype(int)
    outputs = np.rint(dice.exponential(output, count)).astype(int)
    outputs = np.clip(outputs, 1, longest // 2)
    prompts = np.clip(prompts, 1, longest - outputs)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))
