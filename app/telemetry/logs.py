"""One log stream: JSON lines or readable text, for this process and for the engine's.

Fields of a record are given as `extra={"fields": {...}}`, or with `fields(...)`.

vLLM's engine processes import this module, by the file that VLLM_LOGGING_CONFIG_PATH names, before
anything else of the service: it stays free of imports that cost time.
"""

from __future__ import annotations

import json
import logging
import logging.config
import math
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from app.settings import LoggingSettings

_REQUESTS: Final = logging.getLogger("tidegate.request")
_SECONDS: Final = ("duration_s", "queue_wait_s", "ttft_s")
# Loggers that follow `logging.level`; what other libraries say below a warning is not for an
# operator, at any level.
_OUR_LOGGERS: Final = ("app", "tidegate", "uvicorn", "uvicorn.error", "vllm")
_RESERVED: Final = frozenset(
    ("ts", "level", "logger", "message", "process", "pid", "exception", "stack")
)
_MAX_DEPTH: Final = 8
_MAX_INT_BITS: Final = 64
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_UNPRINTABLE_IN_BLOCK: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_ENCODER: Final = json.JSONEncoder(allow_nan=False)
_BARE_VALUE: Final = re.compile(r"[^\s\"'=\\]+")


@dataclass(frozen=True)
class FinishedRequest:
    """What is logged about a request: counts in tokens, times in seconds, None for unknown.

    Prompts, outputs and the API key itself are never part of it; `key` is the key's name.
    """

    id: str
    route: str
    status: int
    duration_s: float
    key: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    queue_wait_s: float | None = None
    ttft_s: float | None = None
    finish_reason: str | None = None


def request_line(request: FinishedRequest) -> None:
    """Log one finished request, whatever its status, at level info."""
    values = vars(request).copy()
    for name in _SECONDS:
        if values[name] is not None:
            # Below a tenth of a millisecond is noise, and 17 digits are hard to read.
            values[name] = round(values[name], 4)
    _REQUESTS.info("request finished", extra={"fields": values})


def fields(**values: Any) -> dict[str, dict[str, Any]]:
    """The `extra` argument of a log call that has fields."""
    return {"fields": values}


def configure(settings: LoggingSettings) -> None:
    """Send every logger of this process, and Python's warnings, through our formatter.

    Uvicorn must be started with `log_config=None`, or it puts its own handlers back.
    """
    logging.config.dictConfig(vllm_logging_config(settings))
    logging.captureWarnings(capture=True)


def vllm_logging_config(settings: LoggingSettings) -> dict[str, Any]:
    """A `dictConfig` of plain data that any process can load.

    vLLM applies it in each engine process, and in ours too when it makes the engine's
    configuration; `dictConfig` replaces what was there: so it is whole, and the same for all.
    """
    level = settings.level.upper()
    formatter = JsonFormatter if settings.format == "json" else ConsoleFormatter
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"tidegate": {"()": f"{__name__}.{formatter.__name__}"}},
        "handlers": {
            "tidegate": {
                # Flushes after each record. Stdout, because one stream keeps the order and
                # stderr is left to what cannot log: the interpreter and native libraries.
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stdout",
                # Also for the loggers to which a library has given a level of their own.
                "level": level,
                "formatter": "tidegate",
            }
        },
        "root": {"handlers": ["tidegate"], "level": _at_least_warning(level)},
        "loggers": {
            **{name: _passed_on(level) for name in _OUR_LOGGERS},
            # Its debug lines quote requests.
            "vllm": _passed_on("INFO" if level == "DEBUG" and not settings.log_content else level),
            "py.warnings": _passed_on(_at_least_warning(level)),
            # Off: a finished request has its line, probes and scrapes have none. Uvicorn asks
            # whether the logger has handlers.
            "uvicorn.access": {"handlers": [], "level": "CRITICAL", "propagate": False},
        },
    }


def write_vllm_logging_config(settings: LoggingSettings, path: Path, failure: Path) -> None:
    """Write the configuration for VLLM_LOGGING_CONFIG_PATH.

    Args:
        settings: ours.
        path: of the file.
        failure: where a process of the engine notes why it did not start.

    """
    config = vllm_logging_config(settings)
    made_by = "app.engine.children.prepare"
    config["filters"] = {"child": {"()": made_by, "file": str(failure), "service": os.getpid()}}
    config["handlers"]["tidegate"]["filters"] = ["child"]
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")


class JsonFormatter(logging.Formatter):
    """One JSON object on one line of ASCII, for any content."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_process(record),
        }
        for name, value in _fields(record).items():
            line[f"{name}_" if name in _RESERVED else name] = value
        if exception := _exception(self, record):
            line["exception"] = exception
        if record.stack_info:
            line["stack"] = record.stack_info
        return _ENCODER.encode(_plain(line))


class ConsoleFormatter(logging.Formatter):
    """One readable line with `key=value` fields; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback if there is one, without the end of the last line."""
        parts = [
            _timestamp(record),
            f"{record.levelname:<8}",
            f"{record.name}:",
            _escaped(_message(record), _UNPRINTABLE),
        ]
        pairs = {**_process(record), **_fields(record)}
        parts += [f"{k}={_console_value(v)}" for k, v in pairs.items() if v is not None]
        blocks = [" ".join(parts), _exception(self, record), record.stack_info]
        return "\n".join(_escaped(block, _UNPRINTABLE_IN_BLOCK) for block in blocks if block)


def _at_least_warning(level: str) -> str:
    return level if level in {"ERROR", "CRITICAL"} else "WARNING"


def _passed_on(level: str) -> dict[str, Any]:
    # No handlers of its own: whatever a library had put there is removed.
    return {"handlers": [], "level": level, "propagate": True}


def _timestamp(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit must not cost us the line
        return f"{_text(record.msg)} {_text(record.args)}"


def _process(record: logging.LogRecord) -> dict[str, Any]:
    # vLLM names its processes (EngineCore_DP0, Worker_TP1) on each record.
    name = getattr(record, "vllm_process_name", None) or record.processName
    return {} if name == "MainProcess" else {"process": name, "pid": record.process}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    values = getattr(record, "fields", None)
    return {_text(k): v for k, v in values.items()} if isinstance(values, dict) else {}


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    # A record from another process has the text only.
    return record.exc_text


def _console_value(value: Any) -> str:
    if isinstance(value, str) and _BARE_VALUE.fullmatch(value) and value.isprintable():
        return value
    return json.dumps(_plain(value), ensure_ascii=False)


def _escaped(text: str, pattern: re.Pattern[str]) -> str:
    # So that what a client sends can neither forge a line nor steer a terminal.
    return pattern.sub(lambda match: repr(match[0])[1:-1], _valid(text))


def _plain(value: Any, depth: int = 0) -> Any:
    """The nearest JSON value, for any object."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _plain_int(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _text(value)
    if isinstance(value, dict | list | tuple | set | frozenset) and depth < _MAX_DEPTH:
        if isinstance(value, dict):
            return {_text(k): _plain(v, depth + 1) for k, v in value.items()}
        return [_plain(item, depth + 1) for item in value]
    return _text(value)


def _plain_int(value: int) -> int | str:
    # Python refuses to write very long integers in decimal, and JSON readers to read them.
    return value if value.bit_length() <= _MAX_INT_BITS else hex(value)


def _text(value: Any) -> str:
    try:
        return _valid(str(value))
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost us the line
        return f"<{type(value).__name__}>"


def _valid(text: str) -> str:
    # Halves of surrogate pairs are no Unicode text: strict JSON readers refuse the whole line.
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
