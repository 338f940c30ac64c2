"""What run, compare and search begin with: servers that answer, and a capacity where one is due."""

from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from loadtest import options, servers
from loadtest.errors import UsageError
from loadtest.result import Result
from loadtest.settings import Run
from loadtest.verdict import Grade

Execute: TypeAlias = Callable[[Run, Path], tuple[Result, Path]]
"""`loadtest.run.execute`."""


def reached(given: Namespace, one: bool = True) -> AbstractContextManager[list[servers.Server]]:
    """The servers of settled options; those to be started live as long as the context.

    Raises:
        UsageError: there are several and `one` is meant, or the plan cannot be drawn.

    """
    sources = options.sources(given)
    if one and len(sources) > 1:
        raise UsageError("this takes one --base-url or --serve; several are for compare")
    options.check(given)
    return servers.reached(
        sources,
        model=getattr(given, "serve_model", None),
        log_directory=options.directory(given),
        key=options.key(given),
    )


def resolved(given: Namespace, base_url: str, execute: Execute) -> Run:
    """The run of settled options; the capacity is measured first where it is needed.

    Raises:
        UsageError: it cannot be measured.
        KeyboardInterrupt: the user ended the measurement.

    """
    if not options.needs_capacity(given):
        return options.build(given, base_url)
    result, path = execute(options.capacity_run(given, base_url), options.directory(given))
    if result.harness.interrupted:
        raise KeyboardInterrupt
    if result.verdict.grade is Grade.INVALID:
        raise UsageError(f"the capacity was not measured: {'; '.join(result.verdict.reasons)}")
    capacity = capacity_of(result)
    if capacity == 0:
        raise UsageError(f"the capacity was not measured: no request ended in time ({path})")
    print(f"capacity: {capacity:.2f} requests/s, {result.verdict.grade.value}: {path}", flush=True)
    return options.build(given, base_url, capacity)


def capacity_of(result: Result) -> float:
    """Requests per second that a closed loop says the server can serve; 0: nothing ended.

    Where answers have the lengths that were asked for and come as streams, it is output tokens per
    second over the mean length of all that was sent: the batch is full of tokens from the first
    second on, while what ends in the first minute is mostly short, and what does not mostly long.
    """
    asked = [record.output_tokens_asked for record in result.records]
    target = result.run.target
    if not (target.ignore_eos and target.stream) or not any(asked):
        return float(result.summary["requests_per_s"])
    return float(result.summary["output_tokens_per_s"]) * len(asked) / sum(asked)
