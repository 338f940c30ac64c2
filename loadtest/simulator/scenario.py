"""What `simulate` and `plan` have in common: the load, the engine, the limits, from options."""

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest import arrivals, lengths, options, traces
from loadtest.errors import UsageError
from loadtest.simulator import calibration
from loadtest.simulator.autoscaler import Autoscaler
from loadtest.simulator.door import DoorSettings
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.job import Job
from loadtest.simulator.outcome import Slo
from loadtest.simulator.pods import STARTS, Start
from loadtest.simulator.step_time import Box, Coefficients, Work
from loadtest.simulator.ticks import ticks

ROOFLINE_8B = Coefficients(8e-3, 1.03e-4, 3e-5, 6.4e-8, 3.4e-9)
"""NOT measured: 8 billion parameters in bf16 on 2 TB/s and 312 TFLOP/s, half of which is reached.

16 GB of weights / 2 TB/s; 16 GFLOP a token / 156 TFLOP/s; 128 KiB of KV cache a token / 2 TB/s;
0.52 MFLOP for each pair of tokens / 156 TFLOP/s; sampling of 30 µs a sequence is a guess.
"""
ROOFLINE = "roofline-8b"
KV_CACHE = {"kv_blocks": 24_000, "block_size": 16}
"""Of a replica, where neither the options nor a calibration say it."""
MARGIN_S = 1.0
DELAYS = {
    "scrape": "between two scrapes of a pod",
    "adapter": "age of what a query finds at least",
    "window": "of the query's average; 0: the last sample",
    "sync": "between two looks of the controller",
}


def add_load(parser: argparse.ArgumentParser) -> None:
    """When requests come, and how long they are."""
    group = parser.add_argument_group("the load")
    group.add_argument("--trace", type=Path, metavar="FILE", help="or --rate")
    group.add_argument("--trace-kind", choices=tuple(traces.READERS), default="azure")
    group.add_argument("--time-scale", type=options.positive, default=1.0, help="2: half as dense")
    group.add_argument("--rate", type=options.positive, metavar="R", help="Poisson, requests/s")
    group.add_argument("--minutes", type=options.positive, metavar="M", help="of a trace: at most")
    for name in ("prompt", "output"):
        group.add_argument(
            f"--{name}-tokens",
            metavar="SPEC",
            help="fixed:N, uniform:LOW:HIGH or exponential:MEAN; needed where the trace has none",
        )
    group.add_argument("--seed", type=int, default=0, metavar="N")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """One replica."""
    group = parser.add_argument_group("a replica")
    group.add_argument(
        "--coefficients",
        required=True,
        metavar="FILE",
        help=f"what `calibrate` wrote, or {ROOFLINE}: worked out, not measured",
    )
    for name, default in KV_CACHE.items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=options.count,
            metavar="N",
            help=f"default: those of the engine that was calibrated, or {default}",
        )
    group.add_argument("--start", default="typical", metavar="S", help="seconds, or a preset")
    group = parser.add_argument_group("its front door")
    group.add_argument("--ttft-slo", type=options.positive, metavar="S", help="default: none")
    group.add_argument(
        "--max-pending", type=options.count, metavar="N", help="default: four times the slots"
    )
    timeout_s = DoorSettings.queue_timeout_s
    group.add_argument(
        "--queue-timeout",
        type=options.positive,
        default=timeout_s,
        metavar="S",
        help=f"default: {timeout_s:g}",
    )
    group.add_argument("--no-door", action="store_true", help="vLLM's own queue, without bounds")


def add_delays(parser: argparse.ArgumentParser) -> None:
    """How old what the autoscaler reads is."""
    group = parser.add_argument_group("how an autoscaler learns of the gauges, in seconds")
    for name, about in DELAYS.items():
        default = getattr(Autoscaler, f"{name}_s")
        group.add_argument(
            f"--{name}",
            type=options.amount if default == 0 else options.positive,
            default=default,
            metavar="S",
            help=f"{about}; default: {default:g}",
        )


def delays(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those fields of an autoscaler."""
    return {f"{name}_s": getattr(arguments, name) for name in DELAYS}


def add_slo(parser: argparse.ArgumentParser) -> None:
    """What a good request is."""
    group = parser.add_argument_group("a good request, in seconds")
    for name in ("ttft", "tpot", "e2e"):
        group.add_argument(f"--good-{name}", type=options.positive, metavar="S")


@dataclass(frozen=True)
class Load:
    """Requests as arrays; jobs are made of them anew for each play."""

    at: list[float]
    prompts: list[int]
    outputs: list[int]
    tenants: list[str]

    @property
    def end_s(self) -> float:
        return self.at[-1] + MARGIN_S

    def jobs(self) -> Iterator[Job]:
        """In order of arrival."""
        columns = zip(self.at, self.prompts, self.outputs, self.tenants, strict=True)
        for number, (at, prompt, output, tenant) in enumerate(columns):
            yield Job(number, prompt, output, ticks(at), tenant=tenant)


def load(arguments: argparse.Namespace) -> Load:
    """What the options say.

    Raises:
        UsageError: they do not say all.

    """
    if arguments.seed < 0:
        raise UsageError(f"--seed must not be negative, not {arguments.seed}")
    dice = np.random.default_rng(arguments.seed)
    found = _trace(arguments, dice) if arguments.trace else _poisson(arguments, dice)
    if not found:
        raise UsageError("no request comes in that time")
    return Load(
        [arrival.at for arrival in found],
        _lengths(arguments.prompt_tokens, [a.prompt_tokens for a in found], "prompt", dice),
        _lengths(arguments.output_tokens, [a.output_tokens for a in found], "output", dice),
        [arrival.tenant or "" for arrival in found],
    )


def _trace(arguments: argparse.Namespace, dice: np.random.Generator) -> list[traces.Arrival]:
    found = traces.read(arguments.trace, arguments.trace_kind, dice)
    most = math.inf if arguments.minutes is None else 60 * arguments.minutes
    scaled = (
        traces.Arrival(a.at * arguments.time_scale, a.prompt_tokens, a.output_tokens, a.tenant)
        for a in found
    )
    return [arrival for arrival in scaled if arrival.at < most]


def _poisson(arguments: argparse.Namespace, dice: np.random.Generator) -> list[traces.Arrival]:
    if arguments.rate is None or arguments.minutes is None:
        raise UsageError("give a --trace, or a --rate and --minutes")
    times = arrivals.poisson(arguments.rate, 60 * arguments.minutes, dice).tolist()
    return [traces.Arrival(at, None, None) for at in times]


def _lengths(
    spec: str | None, given: list[int | None], name: str, dice: np.random.Generator
) -> list[int]:
    if spec is not None:
        drawn: list[int] = lengths.draw(spec, len(given), dice).tolist()
        return drawn
    known = [max(1, length) for length in given if length is not None]
    if len(known) < len(given):
        raise UsageError(f"--{name}-tokens is needed: the load has no lengths of its own")
    return known


@dataclass(frozen=True)
class Replica:
    """What one is like, but for its engine's settings."""

    coefficients: Coefficients
    box: Box | None
    door: DoorSettings | None
    start: Start
    kv_blocks: int
    block_size: int

    def engine(self, slots: int, step_tokens: int) -> EngineSettings:
        """With vLLM's two settings."""
        if step_tokens < slots:
            raise UsageError("--max-num-batched-tokens must not be below --max-num-seqs")
        return EngineSettings(slots, step_tokens, self.kv_blocks, self.block_size)


def replica(arguments: argparse.Namespace) -> Replica:
    """What the options say."""
    coefficients = ROOFLINE_8B
    box: Box | None = None
    measured: Mapping[str, Any] = {}
    if arguments.coefficients != ROOFLINE:
        known = calibration.load(Path(arguments.coefficients))
        coefficients, box, measured = known.coefficients, known.box, known.engine
    kv_cache = {
        name: getattr(arguments, name) or int(measured.get(name, default))
        for name, default in KV_CACHE.items()
    }
    door = DoorSettings(arguments.max_pending, arguments.queue_timeout, arguments.ttft_slo)
    start = start_of(arguments.start)
    return Replica(coefficients, box, None if arguments.no_door else door, start, **kv_cache)


def start_of(text: str) -> Start:
    """A preset, or seconds in which a pod runs and is not ready."""
    if text in STARTS:
        return STARTS[text]
    try:
        return Start(0.0, options.amount(text))
    except (ValueError, argparse.ArgumentTypeError):
        names = ", ".join(STARTS)
        raise UsageError(f"--start {text}: seconds, or one of {names}") from None


def slo(arguments: argparse.Namespace) -> Slo:
    """What the options say."""
    return Slo(arguments.good_ttft, arguments.good_tpot, arguments.good_e2e)


def check(load: Load, given: EngineSettings) -> None:
    """Raise UsageError for a request that no replica could ever serve."""
    room = given.kv_blocks * given.block_size
    longest = max(p + o for p, o in zip(load.prompts, load.outputs, strict=True))
    if longest > room:
        raise UsageError(f"a request of {longest} tokens does not fit into --kv-blocks: {room}")


def warnings(box: Box | None, most: Work) -> Iterator[str]:
    """What was played outside of what a calibration has seen."""
    if box is None:
        return
    for name in box.outside(most):
        seen, played = getattr(box.most, name), getattr(most, name)
        yield f"extrapolated: {name} up to {played}, but the fit has seen at most {seen}"
