"""`ratios`: what `batching` measures on an engine, played on the model.

The same workloads, arms and clients: 2 B of them in a closed loop, the continuous arm by the time
in which all slots could be taken, the static one by its whole round.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest import arms, options
from loadtest.arms import ARMS, Admission, Workload
from loadtest.errors import UsageError
from loadtest.simulator import fit
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.fast_engine import FastEngine
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import StepTime
from loadtest.simulator.text import aligned

ROUNDS, REQUESTS, BLOCK = 20, 512, 16
TOLERANCE = 0.1
"""How far from what was measured a ratio may be."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--coefficients", type=Path, required=True, metavar="FILE")
    parser.add_argument("--trace", type=Path, nargs="+", default=[], metavar="FILE", help="Azure's")
    parser.add_argument("--prompt-tokens", type=options.count, default=32, metavar="N", help="mean")
    parser.add_argument("--output-tokens", type=options.count, default=16, metavar="N", help="mean")
    parser.add_argument("--batch", type=options.count, nargs="+", default=[8, 16], metavar="B")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="a result of `batching`")


def main(arguments: argparse.Namespace) -> int:
    """Print the ratios, beside the measured ones if there are any."""
    coefficients, _ = fit.load(arguments.coefficients)
    step = StepTime(coefficients)
    means = (arguments.prompt_tokens, arguments.output_tokens)
    workloads = [arms.synthetic(kind, *means, 0) for kind in ("fixed", "exponential")]
    workloads += [arms.of_trace(path, None, *means) for path in arguments.trace]
    measured = {} if arguments.measured is None else _measured(arguments.measured)
    rows = [("lengths", "B", "static steps/s", "model", "bound", "measured", "model / measured")]
    rows += [
        _row(workload, batch, step, measured.get((workload.name, batch)))
        for workload in workloads
        for batch in arguments.batch
    ]
    print(aligned(rows))
    print(f"ratio of tokens/s, continuous over static; ! further off than {TOLERANCE:.0%}")
    return 0


def _row(
    workload: Workload, batch: int, step: StepTime, measured: float | None
) -> tuple[str, str, str, str, str, str, str]:
    found = ratio(workload, batch, step)
    bound = f"{arms.bound(workload.outputs, batch):.2f}"
    off = found.value / measured if measured else 1.0
    return (
        workload.name,
        str(batch),
        f"{found.static_steps:.0f}",
        f"{found.value:.2f}",
        bound,
        f"{measured:.2f}" if measured else "-",
        f"{off:.2f}{'!' if abs(off - 1) > TOLERANCE else ''}" if measured else "-",
    )


def _measured(path: Path) -> Mapping[tuple[str, int], float]:
    """The ratios of a result of `batching`."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return {
            (cell["workload"], cell["batch"]): cell["closed"]["tokens_per_s"]["ratio"]["value"]
            for cell in cells
        }
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no result of batching: {error}") from None


@dataclass(frozen=True)
class Ratio:
    """The median over rounds."""

    value: float
    static_steps: float


def ratio(workload: Workload, batch: int, step: StepTime) -> Ratio:
    """Continuous over static, each round with the same requests for both."""
    found = []
    for number in range(ROUNDS):
        dice = np.random.default_rng([number, batch])
        asks = [lengths.tolist() for lengths in workload.draw(-(-REQUESTS // batch) * batch, dice)]
        pairs = list(zip(*asks, strict=True))
        rates = {name: _Round(pairs, arm, batch, step).play() for name, arm in ARMS.items()}
        found.append((rates["continuous"][0] / rates["static"][1], rates["static"][2]))
    value, steps = np.median(np.array(found), axis=0).tolist()
    return Ratio(value, steps)


class _Round:
    """One arm in a closed loop."""

    def __init__(
        self, asks: Sequence[tuple[int, int]], arm: Admission, batch: int, step: StepTime
    ) -> None:
        prompt = max(prompt for prompt, _ in asks)
        longest = max(prompt + output for prompt, output in asks)
        blocks = batch * (-(-longest // BLOCK))
        # No prompt is read in pieces and nothing is preempted, as in `batching`.
        self._engine = FastEngine(EngineSettings(batch, batch * prompt, blocks, BLOCK), step)
        self._asks = asks
        self._arm = arm
        self._batch = batch
        self._added = self._ended = 0

    def play(self) -> tuple[float, float, float]:
        """Tokens per tick while all slots could be taken, and of the round; steps per second."""
        engine, count = self._engine, len(self._asks)
        full = (1, 0)
        while self._ended < count:
            self._admit()
            could_be_full = count - self._ended >= self._batch
            _, ended = engine.step(engine.now + 1)
            self._ended += len(ended)
            if could_be_full:
                full = (engine.now, engine.tokens)
        steps = engine.steps * 10**15 / engine.now
        return full[1] / full[0], engine.tokens / engine.now, steps

    def _admit(self) -> None:
        inside = self._added - self._ended
        ready = min(len(self._asks) - self._added, 2 * self._batch - inside)
        for _ in range(self._arm(ready, inside, self._batch)):
            prompt, output = self._asks[self._added]
            self._engine.add(Job(self._added, prompt, output), self._engine.now)
            self._added += 1
