"""The command line: `python -m app [check | worker] [--config FILE] [--group.key value …]`.

And `python -m app keys --name NAME` and `python -m app drain`, which need no settings.
"""

import asyncio
import importlib
import logging
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import app
from app.auth.file import entry_of
from app.auth.keys import new_key
from app.drain import NoService, drain
from app.engine.environment import prepared
from app.engine.failures import in_a_line
from app.main import create_app, keyring_of
from app.server import configuration, listen, ports, serve
from app.settings import LoggingSettings, Settings, SettingsError, describe, dump, load
from app.telemetry.logs import configure

logger = logging.getLogger("app")

USAGE = """\
usage: python -m app [COMMAND] [--config FILE] [--GROUP.KEY VALUE ...]

commands:
  (none)   serve
  check    validate the settings, engine arguments and keys file included, and print them;
           load nothing
  drain    tell the service in this container to drain, and wait for its end: for a preStop hook;
           with --pid N, that one
  keys     make an API key: `keys --name NAME` prints it, once, and its entry for the keys file
  worker   run this node's part of an engine that spans several nodes; no port

settings (also as TIDEGATE_GROUP__KEY in the environment, or in FILE as YAML):
"""

OK, FAILED, USAGE_ERROR = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run a command; the result is the exit status."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE + describe())
        return OK
    if "--version" in arguments:
        print(app.__version__)
        return OK
    command = arguments[0] if arguments and not arguments[0].startswith("-") else None
    try:
        run = COMMANDS[command]
    except KeyError:
        print(f"tidegate: unknown command {command!r}; see --help", file=sys.stderr)
        return USAGE_ERROR
    try:
        return run(arguments[1:] if command else arguments)
    except SettingsError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return USAGE_ERROR


def run_server(settings: Settings) -> int:
    """Serve; non-zero when the engine did not start, or died."""
    configure(settings.logging)
    api = create_app(settings)
    try:
        sockets = [listen(settings.server.host, port) for port in ports(settings.server)]
    except OSError as error:
        where = f"{settings.server.host}, port {' or '.join(map(str, ports(settings.server)))}"
        logger.error("cannot listen on %s: %s", where, error)
        return FAILED
    logger.info("listening on %s, port %d", settings.server.host, settings.server.port)
    loop_factory = configuration(settings, api).get_loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        killed_by = runner.run(serve(settings, api, sockets))
    if killed_by is not None:
        logger.warning("ended by a second signal: what was in flight is cut")
        # As a shell says it of a process that a signal has ended.
        return 128 + killed_by
    return report(api.state.service.failure, api.state.service.lifecycle.failed)


def report(failure: BaseException | None, failed: bool) -> int:
    """Say why the service ended, if it was not told to."""
    if isinstance(failure, SettingsError):
        print(f"tidegate: {failure}", file=sys.stderr)
        return USAGE_ERROR
    if failure is not None:
        logger.error("the engine did not start: %s", in_a_line(failure))
        # What was not written for people needs its traceback to be understood.
        told = isinstance(failure, OSError | ValueError | RuntimeError)
        logger.log(logging.DEBUG if told else logging.ERROR, "the cause", exc_info=failure)
    elif failed:
        logger.error("the engine has died")
    return FAILED if failed else OK


def run_check(settings: Settings) -> int:
    """Print the effective settings; the engine's are checked by vllm's own parser."""
    quiet = settings.model_copy(update={"logging": LoggingSettings(level="error")})
    configure(quiet.logging)
    keyring_of(settings)
    with prepared(quiet):
        importlib.import_module("app.engine.check").check(settings)
    print(dump(settings))
    return OK


def run_worker(settings: Settings) -> int:
    """Run a headless engine with the same settings, for another node's service.

    It ends with a signal, or with status FAILED when its part of the engine has ended.
    """
    configure(settings.logging)
    # Until vllm has handlers of its own.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(OK))
    with prepared(settings):
        try:
            importlib.import_module("app.engine.worker").run(settings)
        except Exception as error:  # noqa: BLE001 - whatever it was, the log has to say it
            return report(error, failed=True)
    return report(None, failed=True)


def run_keys(arguments: Sequence[str]) -> int:
    """Print a new key and the entry that lets it in; nothing is kept."""
    parser = Options(prog="python -m app keys", add_help=False, allow_abbrev=False)
    parser.add_argument("--name", required=True)
    name = parser.parse_args(arguments).name
    key = new_key()
    entry = entry_of(name, key)
    print(f"{key}\n\n# Above is the key, shown this once. Its entry for auth.keys_file:\n{entry}")
    return OK


def run_drain(arguments: Sequence[str]) -> int:
    """Drain the service that runs beside; returns when it has ended."""
    parser = Options(prog="python -m app drain", add_help=False, allow_abbrev=False)
    parser.add_argument("--pid", type=int)
    try:
        drain(parser.parse_args(arguments).pid)
    except NoService as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return FAILED
    return OK


class Options(ArgumentParser):
    """Raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message, origin="command line")


def with_settings(run: Callable[[Settings], int]) -> Callable[[Sequence[str]], int]:
    """A command whose arguments are settings."""
    return lambda arguments: run(load(arguments))


COMMANDS: Mapping[str | None, Callable[[Sequence[str]], int]] = {
    None: with_settings(run_server),
    "check": with_settings(run_check),
    "drain": run_drain,
    "keys": run_keys,
    "worker": with_settings(run_worker),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
