"""`calibrate`: what the steps of a real engine take, as coefficients for the model."""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from loadtest import machine, options
from loadtest.errors import UsageError
from loadtest.simulator import fit, grids, records, validate
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.real_engine import RealEngine
from loadtest.simulator.records import Record
from loadtest.simulator.step_time import StepTime

PASSES = 3
"""Of the grid; the first one, in which everything is new to the engine, is not used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--records", type=Path, metavar="FILE", help="fit these, run no engine")
    parser.add_argument("--model", type=Path, metavar="DIR", help="default: a tiny one, made anew")
    for name, default in (
        ("--max-num-seqs", 16),
        ("--max-num-batched-tokens", 256),
        ("--max-model-len", 512),
        ("--kv-blocks", 192),
        ("--block-size", 32),
        ("--threads", 1),
    ):
        parser.add_argument(
            name, type=options.count, default=default, metavar="N", help=f"default: {default}"
        )
    parser.add_argument(
        "--validate",
        type=options.amount,
        default=0.0,
        metavar="S",
        help="then play loads of so many seconds on both, at 50, 80 and 110 %% of the capacity",
    )
    parser.add_argument("--out", type=Path, default=Path("coefficients.json"), metavar="FILE")
    parser.add_argument("--records-out", type=Path, metavar="FILE", help="what was measured")


def main(arguments: argparse.Namespace) -> int:
    """Fit, write, and compare."""
    if arguments.records is not None:
        if arguments.validate:
            raise UsageError("--validate needs an engine, and --records runs none")
        _finish(arguments, records.read(arguments.records))
        return 0
    given = EngineSettings(
        arguments.max_num_seqs,
        arguments.max_num_batched_tokens,
        arguments.kv_blocks,
        arguments.block_size,
    )
    with _engine(arguments, given) as engine:
        found = _finish(arguments, _measure(engine, given, arguments.max_model_len))
        if arguments.validate:
            step = StepTime(found.coefficients)
            longest = arguments.max_model_len
            loads = validate.compare(engine, given, step, longest, arguments.validate)
            print(validate.table(list(loads)))
    return 0


def _finish(arguments: argparse.Namespace, found: list[Record]) -> fit.Fit:
    fitted = fit.fit(found)
    print(fitted)
    if arguments.records_out is not None:
        records.write(arguments.records_out, found)
    facts = {"environment": machine.facts("numpy", "torch")}
    arguments.out.write_text(json.dumps(fit.dump(fitted) | facts, indent=1) + "\n")
    print(arguments.out)
    return fitted


def _measure(engine: RealEngine, given: EngineSettings, longest: int) -> list[Record]:
    dice = np.random.default_rng(0)
    found: list[Record] = []
    for number in range(PASSES):
        batches = grids.grid(given, longest, dice)
        steps = grids.measure(engine, batches, dice)
        found += steps if number else []
    return found


@contextmanager
def _engine(arguments: argparse.Namespace, given: EngineSettings) -> Iterator[RealEngine]:
    with tempfile.TemporaryDirectory(prefix="loadtest-") as scratch:
        model = arguments.model
        if model is None:
            from loadtest.tiny_model import build_model  # noqa: PLC0415 - only here

            model = build_model(Path(scratch) / "tiny")
        engine = RealEngine(model, given, arguments.max_model_len, arguments.threads)
        try:
            yield engine
        finally:
            engine.close()
