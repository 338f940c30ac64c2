"""The highest rate at which a share of the offered requests meets the SLOs, or the harness's own.

The rate is doubled until the share is missed, then the bracket is halved on a scale of ratios. A
probe that is not valid is repeated once, and ends the search when it is not valid again.
"""

import math
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest import options, session
from loadtest.errors import UsageError
from loadtest.result import Result
from loadtest.run import execute
from loadtest.session import Execute
from loadtest.settings import Run
from loadtest.verdict import Grade

SHARE, LOW, HIGH, TOLERANCE = 0.95, 1.0, 1000.0, 0.05
LOADS = ("constant", "poisson", "gamma", "bursts")
"""Those with one rate."""
PAUSE_S = 2.0
"""Between probes. All answers are in by then; what a server still does after them is soon over."""


@dataclass(frozen=True)
class Goal:
    """What is searched for: rates in requests/s, and the width of the last bracket.

    Attributes:
        share: of the offered requests that meets the SLOs; None: what the harness itself can
            drive, which is the highest rate whose run is valid.

    """

    share: float | None = SHARE
    low: float = LOW
    high: float = HIGH
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Bracket:
    """The highest rate that met the goal and the lowest that missed it."""

    met: float | None = None
    missed: float | None = None

    def __str__(self) -> str:
        if self.met is None:
            return "no rate" if self.missed is None else f"below {self.missed:.3g} requests/s"
        if self.missed is None:
            return f"at least {self.met:.3g} requests/s"
        return f"{self.met:.3g} requests/s (met at {self.met:.4g}, missed at {self.missed:.4g})"


@dataclass(frozen=True)
class Answer:
    """Where the search ended, and why it ended there if not at its goal."""

    bracket: Bracket
    stopped: str = ""


def add_arguments(parser: ArgumentParser) -> None:
    """Its options."""
    options.add_arguments(parser)
    group = options.group(parser, "the search")
    for name, kind, default, meaning in (
        ("--share", _share, SHARE, "of the offered requests that meet the SLOs"),
        ("--low", options.positive, LOW, "the first rate, requests/s"),
        ("--high", options.positive, HIGH, "the last rate"),
        ("--tolerance", options.positive, TOLERANCE, "how near: 0.05 is 5 %%"),
    ):
        group.add_argument(name, type=kind, metavar="X", help=f"{meaning}; default: {default:g}")
    group.add_argument(
        "--ceiling", action="store_true", help="what the harness itself can drive, instead of SLOs"
    )


def _share(text: str) -> float:
    share = options.positive(text)
    if share > 1:
        raise ArgumentTypeError(f"must be at most 1, not {text}")
    return share


def main(arguments: Namespace) -> int:
    """Search; 1 when there is no rate to name."""
    given = options.settled(arguments)
    goal = Goal(
        **{n: getattr(given, n) for n in ("share", "low", "high", "tolerance") if n in given}
    )
    if goal.high < goal.low:
        raise UsageError(f"--high {goal.high:g} is below --low {goal.low:g}")
    if given.kind not in LOADS:
        raise UsageError(f"search needs a load with one rate: {', '.join(LOADS)}")
    if "ceiling" in given:
        goal = replace(goal, share=None)
    elif "slo" not in given:
        raise UsageError("search needs --slo, or --ceiling")
    given.rate = options.Rate(goal.low)
    with session.reached(given) as (server,):
        run = options.build(given, server.base_url)
        answer = search(goal, Prober(run, options.directory(given), execute, PAUSE_S))
    meaning = (
        "whose run is valid" if goal.share is None else f"at which {goal.share:.0%} meet the SLOs"
    )
    print(f"highest rate {meaning}: {answer.bracket}")
    if answer.stopped:
        print(f"stopped {answer.stopped}")
    return int(bool(answer.stopped) or answer.bracket.met is None)


def search(goal: Goal, probe: Callable[[float], Result]) -> Answer:
    """Probe rates until the bracket is as narrow as asked for."""
    bracket = Bracket()
    while (rate := next_rate(goal, bracket)) is not None:
        result = probe(rate)
        if result.verdict.grade is not Grade.VALID:
            result = probe(rate)
        valid = result.verdict.grade is Grade.VALID
        if goal.share is None:
            bracket = replace(bracket, met=rate) if valid else replace(bracket, missed=rate)
            continue
        if not valid:
            reasons = "; ".join(result.verdict.reasons)
            return Answer(bracket, f"at {rate:.4g} requests/s, {result.verdict.grade}: {reasons}")
        met = share_met(result) >= goal.share
        bracket = replace(bracket, met=rate) if met else replace(bracket, missed=rate)
    return Answer(bracket)


def next_rate(goal: Goal, bracket: Bracket) -> float | None:
    """Where to probe next; None when nothing is left to find."""
    if bracket.met is None:
        return goal.low if bracket.missed is None else None
    if bracket.missed is None:
        return min(2 * bracket.met, goal.high) if bracket.met < goal.high else None
    if bracket.missed <= bracket.met * (1 + goal.tolerance):
        return None
    return math.sqrt(bracket.met * bracket.missed)


class Prober:
    """Runs at one rate after the other, each with a plan of its own: prompts may stay cached."""

    def __init__(self, run: Run, directory: Path, execute: Execute, pause_s: float) -> None:
        self._run, self._directory, self._execute = run, directory, execute
        self._pause_s = pause_s
        self._done = 0

    def __call__(self, rate: float) -> Result:
        """The run at this rate.

        Raises:
            KeyboardInterrupt: the user ended it.

        """
        if self._done:
            time.sleep(self._pause_s)
        spec = self._run.spec
        spec = replace(spec, load=replace(spec.load, rate=rate), seed=spec.seed + self._done)
        run = replace(self._run, name=f"{self._run.name}-search", spec=spec)
        result, path = self._execute(run, self._directory)
        if result.harness.interrupted:
            raise KeyboardInterrupt
        self._done += 1
        verdict = "; ".join([result.verdict.grade.value, *result.verdict.reasons])
        share = f"{share_met(result):7.2%} meet the SLOs  " if run.slo is not None else ""
        tokens = f"{result.summary['output_tokens_per_s']:.0f} tokens/s  "
        print(f"{rate:9.4g} requests/s  {tokens}{share}{verdict}  {path}", flush=True)
        return result


def share_met(result: Result) -> float:
    """Of the offered requests, those that met every SLO."""
    return float(result.summary["goodput"]["share_of_offered"])
