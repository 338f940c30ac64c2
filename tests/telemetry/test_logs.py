"""The log stream: always one valid line, the same for uvicorn's and vLLM's loggers."""

import io
import json
import logging
import logging.config
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn import Config

from app.settings import LoggingSettings
from app.telemetry.logs import (
    ConsoleFormatter,
    FinishedRequest,
    JsonFormatter,
    configure,
    fields,
    request_line,
    vllm_logging_config,
    write_vllm_logging_config,
)
from tests.rig.logs import loggers_kept


class Colour(Enum):
    RED = 1


class Port(IntEnum):
    HTTP = 80


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass(frozen=True)
class Stdout:
    """What was written since the last look."""

    capsys: pytest.CaptureFixture[str]

    def getvalue(self) -> str:
        return self.capsys.readouterr().out


@pytest.fixture
def stream(capsys: pytest.CaptureFixture[str]) -> Iterator[Stdout]:
    """Stdout as the handlers see it; all loggers are as before afterwards."""
    with loggers_kept():
        yield Stdout(capsys)


def settings(**values: Any) -> LoggingSettings:
    return LoggingSettings.model_validate(values)


def record(message: Any, *args: Any, **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("tidegate.x", logging.INFO, "f.py", 1, message, args, None)
    vars(made).update(attributes)
    return made


def reject(token: str) -> None:
    raise AssertionError(f"{token} is not JSON")


def parsed(line: str) -> Any:
    assert len(line.splitlines()) == 1
    assert line.isascii()
    value = json.loads(line, parse_constant=reject)
    # A lone half of a surrogate pair would not survive this.
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def lines(stream: Stdout) -> list[Any]:
    return [parsed(line) for line in stream.getvalue().splitlines()]


# --- JSON


def test_a_json_line() -> None:
    line = JsonFormatter().format(
        record("hello %s", "you", created=1.0625, fields={"model": "m", "n": 3, "none": None})
    )
    assert parsed(line) == {
        "ts": "1970-01-01T00:00:01.062Z",
        "level": "info",
        "logger": "tidegate.x",
        "message": "hello you",
        "model": "m",
        "n": 3,
        "none": None,
    }


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary()
    | st.text(st.characters(exclude_categories=[]))
    | st.sampled_from([Colour.RED, Port.HTTP, Broken(), object(), Path("/x")]),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=[])) | st.integers(), inner)
    ),
)


@given(message=st.text(st.characters(exclude_categories=[])), values=ANYTHING)
@example(message="\ud800", values="\udfff\ud800")
@example(message="a\r\nb\u2028c\x85d", values={"\ud800": 1, (1,): 2, None: 3})
@example(message="%s %d", values=[10**5000, float("nan"), float("-inf"), 1e400])
@example(message="{", values={"a": {Broken(): {1, 2}}})
def test_any_content_is_one_valid_json_line(message: str, values: Any) -> None:
    line = parsed(JsonFormatter().format(record(message, fields={"values": values, message: 1})))
    assert list(line)[:4] == ["ts", "level", "logger", "message"]
    assert "values" in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Path("/x"), "/x"),
        (Broken(), "<Broken>"),
        (Port.HTTP, 80),
        (True, True),
        (2**64, hex(2**64)),
        (2**63, 2**63),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud83d", "a\ufffd"),
        ({1: (2, {3})}, {"1": [2, [3]]}),
    ],
)
def test_the_nearest_json_value(value: Any, shown: Any) -> None:
    line = parsed(JsonFormatter().format(record("x", fields={"value": value})))
    assert line["value"] == shown
    assert type(line["value"]) is type(shown)


def test_a_value_that_contains_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "[...]" in JsonFormatter().format(record("x", fields={"loop": loop}))


def test_a_field_cannot_replace_what_every_line_has() -> None:
    line = parsed(JsonFormatter().format(record("x", fields={"message": "y", "level": "z"})))
    assert (line["message"], line["level"]) == ("x", "info")
    assert (line["message_"], line["level_"]) == ("y", "z")


@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter()])
def test_arguments_that_do_not_fit_do_not_cost_the_line(formatter: logging.Formatter) -> None:
    text = formatter.format(record("%d and %s", "one"))
    assert "%d and %s" in text
    assert "one" in text


@pytest.mark.parametrize("values", ["text", 5, ["a"]])
def test_fields_that_are_no_mapping_are_left_out(values: Any) -> None:
    assert len(parsed(JsonFormatter().format(record("x", fields=values)))) == 4


def failed(formatter: logging.Formatter) -> str:
    try:
        raise ValueError("bad\nthing\x1b[2J")
    except ValueError:
        return formatter.format(record("x", exc_info=sys.exc_info()))


def test_an_exception_is_one_field() -> None:
    text = parsed(failed(JsonFormatter()))["exception"]
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: bad\nthing\x1b[2J")


def test_exc_info_without_an_exception_is_nothing() -> None:
    line = JsonFormatter().format(record("x", exc_info=(None, None, None), stack_info="Stack:\n f"))
    assert "exception" not in parsed(line)
    assert parsed(line)["stack"] == "Stack:\n f"


def test_the_engine_process_is_named() -> None:
    line = parsed(JsonFormatter().format(record("x", vllm_process_name="EngineCore_DP0")))
    assert line["process"] == "EngineCore_DP0"
    assert isinstance(line["pid"], int)


# --- console


def test_a_console_line() -> None:
    line = ConsoleFormatter().format(
        record("hello", created=0.0, fields={"a": 1, "b": "x y", "c": None, "d": "z", "e": [1]})
    )
    assert line == '1970-01-01T00:00:00.000Z INFO     tidegate.x: hello a=1 b="x y" d=z e=[1]'


@given(text=st.text(st.characters(exclude_categories=[])))
@example(text="\n2026-01-01 forged\x1b[2J\u2028\x85\x9b\ud800")
def test_any_content_is_one_console_line(text: str) -> None:
    line = ConsoleFormatter().format(record(text, fields={"value": text}))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert line.encode("utf-8")


def test_a_traceback_follows_its_console_line() -> None:
    first, second, *rest = failed(ConsoleFormatter()).splitlines()
    assert first.endswith("tidegate.x: x")
    assert second == "Traceback (most recent call last):"
    assert rest[-1] == "thing\\x1b[2J"


# --- a process's loggers


@pytest.mark.parametrize(
    ("level", "logger", "at", "logged"),
    [
        ("info", "tidegate.request", logging.INFO, True),
        ("info", "app.engine.adapter", logging.INFO, True),
        ("info", "app.engine.adapter", logging.DEBUG, False),
        ("debug", "app.engine.adapter", logging.DEBUG, True),
        ("info", "uvicorn.error", logging.INFO, True),
        ("info", "vllm.v1.engine.core", logging.INFO, True),
        ("warning", "vllm.v1.engine.core", logging.INFO, False),
        ("warning", "uvicorn.error", logging.INFO, False),
        ("debug", "httpx", logging.INFO, False),
        ("info", "httpx", logging.WARNING, True),
        ("error", "httpx", logging.WARNING, False),
        ("error", "py.warnings", logging.WARNING, False),
        ("debug", "uvicorn.access", logging.INFO, False),
    ],
)
def test_what_is_logged(stream: Stdout, level: str, logger: str, at: int, logged: bool) -> None:
    configure(settings(level=level))
    logging.getLogger(logger).log(at, "x")
    assert [line["logger"] for line in lines(stream)] == ([logger] if logged else [])


def test_every_line_is_written_at_once_and_only_once(stream: Stdout) -> None:
    configure(settings())
    configure(settings())
    logging.getLogger("vllm.x").info("x")
    assert stream.getvalue().count("\n") == 1


def test_handlers_that_libraries_had_put_are_gone(stream: Stdout) -> None:
    logging.getLogger("vllm").addHandler(logging.StreamHandler(io.StringIO()))
    logging.getLogger("vllm").propagate = False
    configure(settings())
    assert logging.getLogger("vllm").handlers == []
    logging.getLogger("vllm").warning("x")
    assert len(lines(stream)) == 1


def test_python_warnings_are_logged(stream: Stdout) -> None:
    configure(settings())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # As the interpreter does it: pytest has put its own recorder here.
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    (line,) = lines(stream)
    assert (line["logger"], line["level"]) == ("py.warnings", "warning")
    assert "DeprecationWarning: old thing" in line["message"]


def test_uvicorn_keeps_to_it(stream: Stdout) -> None:
    configure(settings())
    Config("app:none", log_config=None)
    logging.getLogger("uvicorn.error").info("Started", extra={"color_message": "\x1b[1mStarted"})
    assert [line["message"] for line in lines(stream)] == ["Started"]
    # What uvicorn's protocols ask before they format an access line.
    assert not logging.getLogger("uvicorn.access").hasHandlers()


def test_console_format_is_chosen(stream: Stdout) -> None:
    configure(settings(format="console"))
    logging.getLogger("tidegate").info("x", extra=fields(a=1))
    assert re.fullmatch(r"\S+Z INFO     tidegate: x a=1\n", stream.getvalue())


# --- requests

REQUEST: Mapping[str, Any] = {
    "id": "r-1",
    "route": "/v1/completions",
    "status": 200,
    "duration_s": 1.23456789,
    "key": "team-a",
    "model": "m",
    "prompt_tokens": 5,
    "output_tokens": 7,
    "queue_wait_s": 0.0,
    "ttft_s": 0.1,
    "finish_reason": "stop",
}


def test_a_request_line_has_every_field_and_nothing_else(stream: Stdout) -> None:
    configure(settings())
    request_line(FinishedRequest(**REQUEST))
    (line,) = lines(stream)
    assert line.pop("ts")
    assert line == {
        **REQUEST,
        "duration_s": 1.2346,
        "level": "info",
        "logger": "tidegate.request",
        "message": "request finished",
    }
    assert set(REQUEST) == {field.name for field in dataclass_fields(FinishedRequest)}


@pytest.mark.parametrize("form", ["json", "console"])
def test_unknown_values_of_a_request(stream: Stdout, form: str) -> None:
    configure(settings(format=form))
    request_line(FinishedRequest(id="r", route="/v1/models", status=404, duration_s=0.5))
    if form == "json":
        (line,) = lines(stream)
        assert line["ttft_s"] is None
        assert line["finish_reason"] is None
    else:
        assert stream.getvalue().endswith(
            "request finished id=r route=/v1/models status=404 duration_s=0.5\n"
        )


# --- vLLM's processes


@pytest.mark.parametrize("form", ["json", "console"])
def test_the_configuration_is_plain_data_that_another_process_can_load(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / "config.json"
    write_vllm_logging_config(settings(format=form, level="warning"), path, tmp_path / "failure")
    written = json.loads(path.read_text())
    del written["filters"], written["handlers"]["tidegate"]["filters"]
    assert written == vllm_logging_config(settings(format=form, level="warning"))
    code = (
        "import json, logging.config, sys\n"
        f"logging.config.dictConfig(json.load(open({str(path)!r})))\n"
        "logging.getLogger('vllm.a').info('quiet')\n"
        "logging.getLogger('vllm.a').warning('loud')\n"
        "heavy = {'vllm', 'torch', 'pydantic', 'yaml'} & set(sys.modules)\n"
        "logging.getLogger('vllm.a').error('heavy: %s', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert "loud" in first
    assert "heavy: []" in second
    assert done.stderr == ""
    assert first.startswith("{") == (form == "json")


@pytest.mark.slow
def test_vllm_itself_takes_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_vllm_logging_config(settings(), path, tmp_path / "failure")
    code = (
        "from vllm.config.logging import LoggingConfig\n"
        "from vllm.logger import configure_logging_if_needed, init_logger, set_vllm_process_name\n"
        f"configure_logging_if_needed(LoggingConfig(pylogging_config_file={str(path)!r}))\n"
        "set_vllm_process_name('EngineCore_DP0')\n"
        "init_logger('vllm.a').info_once('two\\nlines', scope='process')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = parsed(done.stdout.splitlines()[-1])
    assert line["message"] == "two\nlines"
    assert (line["logger"], line["process"]) == ("vllm.a", "EngineCore_DP0")


@pytest.mark.parametrize(("content", "level"), [(False, "INFO"), (True, "DEBUG")])
def test_vllms_debug_lines_quote_requests_so_they_need_consent(content: bool, level: str) -> None:
    settings = LoggingSettings(level="debug", log_content=content)
    config = vllm_logging_config(settings)
    assert config["loggers"]["vllm"]["level"] == level
    assert config["loggers"]["app"]["level"] == "DEBUG"
