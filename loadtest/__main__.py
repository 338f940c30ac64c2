"""The command line: `python -m loadtest COMMAND …`."""

import importlib
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest import options, result, session
from loadtest.errors import UsageError
from loadtest.verdict import Grade

OK, INVALID, USAGE_ERROR, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Command:
    """What a command is for, its options, and what it does; the result is the exit status."""

    about: str
    add_arguments: Callable[[ArgumentParser], None]
    main: Callable[[Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run a command; the result is the exit status."""
    name = arguments[0] if arguments else "--help"
    try:
        if name in ("-h", "--help"):
            print(usage())
            return OK if arguments else USAGE_ERROR
        if name not in COMMANDS:
            raise UsageError(f"unknown command {name!r}: one of {', '.join(COMMANDS)}")
        command = COMMANDS[name]
        parser = options.Parser(name, command.about)
        command.add_arguments(parser)
        return command.main(parser.parse_args(arguments[1:]))
    except UsageError as error:
        print(f"loadtest: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def usage() -> str:
    """The commands."""
    rows = [f"  {name:<12}{command.about}" for name, command in COMMANDS.items()]
    head = ["usage: python -m loadtest COMMAND [OPTIONS]; COMMAND --help lists them", ""]
    return "\n".join([*head, *rows])


def run(arguments: Namespace) -> int:
    """One run: its table, and where its result is."""
    given = options.settled(arguments)
    execute = _part("run").execute
    with session.reached(given) as (server,):
        settings = session.resolved(given, server.base_url, execute)
        found, path = execute(settings, options.directory(given))
    print(_part("table").render(found))
    print(path)
    if found.harness.interrupted:
        return INTERRUPTED
    return INVALID if found.verdict.grade is Grade.INVALID else OK


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="JSON files")
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="PAGE")


def report(arguments: Namespace) -> int:
    """A page and its pictures; two or more results also side by side here."""
    if len(arguments.results) > 1:
        found = [result.load(path) for path in arguments.results]
        print(_part("table").side_by_side(found))
    for path in _part("report").write(arguments.results, arguments.out):
        print(path)
    return OK


def _add_tiny_model(parser: ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR")


def tiny_model(arguments: Namespace) -> int:
    """A model directory."""
    print(_part("tiny_model").build_model(arguments.directory))
    return OK


def _part(name: str) -> Any:
    """A module, imported when it is needed: some take seconds."""
    return importlib.import_module(f"loadtest.{name}")


def _command(about: str, name: str) -> Command:
    """A command that is a module."""
    return Command(
        about,
        lambda parser: _part(name).add_arguments(parser),
        lambda arguments: int(_part(name).main(arguments)),
    )


COMMANDS: Mapping[str, Command] = {
    "run": Command("send one load to a server and measure it", options.add_arguments, run),
    "compare": _command("send the same load to two or more servers in turn", "compare"),
    "search": _command("find the highest rate at which a share meets the SLOs", "search"),
    "sweep": _command("measure goodput at several rates, for one or more servers", "sweep"),
    "frontend": _command("measure what front ends cost per token, request and probe", "frontend"),
    "report": Command("make a page and pictures of results", _add_report, report),
    "batching": _command("measure static against continuous batching", "batching"),
    "calibrate": _command("measure how long an engine's steps take", "simulator.calibrate"),
    "validate": _command("hold the simulator against the engine", "simulator.validate"),
    "ratios": _command("hold the simulator against `batching`", "simulator.ratios"),
    "slots": _command("draw static and continuous batching over time", "simulator.slots_picture"),
    "scaling": _command("play a step in the load against autoscalers", "simulator.scaling"),
    "simulate": _command("play a load on replicas with an autoscaler", "simulator.simulate"),
    "plan": _command("search the cheapest settings that keep requests good", "simulator.plan"),
    "agreement": _command("measure with other clients too, and compare", "agreement"),
    "tiny-model": Command("write a tiny model for a real engine", _add_tiny_model, tiny_model),
}

if __name__ == "__main__":
    # A harness that is told to end also writes what it has, and ends its servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
