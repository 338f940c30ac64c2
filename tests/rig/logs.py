"""Python's logging, which is one for all tests of a process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loggers_kept() -> Iterator[None]:
    """Levels, handlers and propagation are afterwards what they were; new loggers inherit all."""
    before = [_State(log) for log in (logging.getLogger(), *_named().values())]
    known = set(_named())
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        for state in before:
            state.restore()
        for name in _named().keys() - known:
            log = logging.getLogger(name)
            log.setLevel(logging.NOTSET)
            log.propagate = True
            log.handlers.clear()


class _State:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._values = log.level, log.propagate, log.disabled, log.handlers[:]

    def restore(self) -> None:
        level, self._log.propagate, self._log.disabled, handlers = self._values
        self._log.setLevel(level)
        self._log.handlers[:] = handlers


def _named() -> dict[str, logging.Logger]:
    loggers = logging.getLogger().manager.loggerDict
    return {name: log for name, log in loggers.items() if isinstance(log, logging.Logger)}
