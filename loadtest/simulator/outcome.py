"""What became of requests, in a few numbers each, so that a day of them fits into memory."""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.simulator.job import Job
from loadtest.simulator.ticks import Ticks, seconds

Floats = NDArray[np.float64]
NAMES = ("at", "ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Slo:
    """Seconds; None: whatever."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


class Outcome:
    """Of all requests that came, in the order of their ends.

    Attributes:
        refused: how many, by the reason.
        tokens: output tokens of those that were served.

    """

    def __init__(self, emit: Ticks = 0) -> None:
        self.refused: Counter[str] = Counter()
        self.tokens = self.preemptions = 0
        self._emit = emit
        self._columns: Mapping[str, array[float]] = {name: array("d") for name in NAMES}

    def add(self, job: Job) -> None:
        """Take one that has ended; what is not known of one that was refused is infinite."""
        ttft = tpot = e2e = float("inf")
        self.preemptions += job.preemptions
        if job.refused is not None:
            self.refused[job.refused] += 1
        else:
            assert job.first is not None
            assert job.ended is not None
            ttft = seconds(job.first + self._emit - job.arrived)
            e2e = seconds(job.ended + self._emit - job.arrived)
            tpot = (e2e - ttft) / (job.output - 1) if job.output > 1 else 0.0
            self.tokens += job.output
        values = (seconds(job.arrived), ttft, tpot, e2e)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self._columns["at"])

    def column(self, name: str) -> Floats:
        """Seconds; `at` is of the arrival."""
        return np.frombuffer(self._columns[name], dtype=np.float64)

    @property
    def served(self) -> int:
        return len(self) - self.refused.total()

    def good(self, slo: Slo) -> NDArray[np.bool_]:
        """Whether each was served within the limits."""
        found = np.isfinite(self.column("e2e"))
        for name in ("ttft", "tpot", "e2e"):
            limit = getattr(slo, name)
            if limit is not None:
                found &= self.column(name) <= limit
        return found

    def percentile(self, name: str, q: float) -> float:
        """Over those that were served."""
        values = self.column(name)
        values = values[np.isfinite(values)]
        return float(np.percentile(values, q)) if len(values) else float("nan")
