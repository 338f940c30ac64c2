"""Where settings come from, what stops the start, and what an operator reads then."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.settings import (
    EngineSettings,
    FrontendSettings,
    Settings,
    SettingsError,
    describe,
    dump,
    load,
    masked,
    unknown_key,
)

CONTRACT_DEFAULTS: Mapping[str, Any] = {
    "server": {
        "host": "0.0.0.0",
        "port": 8000,
        "ops_port": None,
        "root_path": "",
        "cors_origins": (),
        "keep_alive_s": 650.0,
        "max_body_bytes": 10 * 2**20,
        "body_timeout_s": 30.0,
        "trust_routing_headers": False,
        "coalesce_chunks": True,
    },
    "engine": {
        "model": None,
        "served_model_name": None,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.9,
    },
    "frontend": {},
    "admission": {
        "max_pending": None,
        "queue_timeout_s": 30.0,
        "ttft_slo_s": None,
        "lookahead": None,
        "reject_status": 429,
        "max_sequences_per_request": 128,
    },
    "auth": {"keys_file": None},
    "metrics": {
        "poll_interval_s": 2.0,
        "saturation_threshold": 100,
        "require_key": False,
        "step_records": 0,
    },
    "lifecycle": {
        "drain_settle_s": 5.0,
        "drain_timeout_s": 120.0,
        "stall_timeout_s": 30.0,
        "dead_after_s": 120.0,
    },
    "logging": {"format": "json", "level": "info", "log_content": False},
}


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "profile.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def from_file(directory: Path, text: str | bytes) -> Settings:
    return load(["--config", str(write(directory, text))], {})


def value(settings: Settings, key: str) -> Any:
    group, name = key.split(".")
    return getattr(getattr(settings, group), name)


def refusal(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(argv, environ or {})
    line = str(caught.value)
    assert line
    assert len(line.splitlines()) == 1
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return line


def test_defaults_are_those_of_the_contract() -> None:
    assert load([], {}).model_dump() == CONTRACT_DEFAULTS
    assert load([], {}) == Settings()


def test_everything_is_frozen() -> None:
    settings = load(["--engine.seed", "1"], {})
    for target, name in [
        (settings, "server"),
        (settings.server, "port"),
        (settings.engine, "seed"),
        (settings.frontend, "chat_template"),
    ]:
        with pytest.raises(ValidationError):
            setattr(target, name, None)


# --- precedence


@pytest.mark.parametrize(
    ("sources", "expected", "origin"),
    [
        ((), 256, "default"),
        (("file",), 1, "{path} line 2"),
        (("file", "environ"), 2, "environment variable TIDEGATE_ENGINE__MAX_NUM_SEQS"),
        (("environ",), 2, "environment variable TIDEGATE_ENGINE__MAX_NUM_SEQS"),
        (("file", "environ", "argv"), 3, "command line --engine.max_num_seqs"),
        (("file", "argv"), 3, "command line --engine.max_num_seqs"),
    ],
)
def test_the_stronger_source_wins(
    tmp_path: Path, sources: Sequence[str], expected: int, origin: str
) -> None:
    path = write(tmp_path, "engine:\n  max_num_seqs: 1\n" if "file" in sources else "")
    environ = {"TIDEGATE_ENGINE__MAX_NUM_SEQS": "2"} if "environ" in sources else {}
    argv = ["--engine.max_num_seqs", "3"] if "argv" in sources else []
    settings = load(["--config", str(path), *argv], environ)
    assert settings.engine.max_num_seqs == expected
    assert settings.origin("engine.max_num_seqs") == origin.format(path=path)


def test_sources_fill_different_keys_of_one_group(tmp_path: Path) -> None:
    path = write(tmp_path, "engine: {max_num_seqs: 4, seed: 1}")
    settings = load(
        ["--engine.dtype=float32", f"--config={path}"], {"tidegate_Engine__Model": "a/b"}
    )
    assert settings.engine.arguments() == {
        "model": "a/b",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.9,
        "seed": 1,
        "dtype": "float32",
    }


def test_a_value_replaces_a_weaker_one_as_a_whole_and_a_deeper_key_a_part(tmp_path: Path) -> None:
    path = write(tmp_path, "engine: {hf_overrides: {a: 1, b: 2}}")
    whole = load(["--config", str(path), "--engine.hf_overrides", '{"c": 3}'], {})
    part = load(["--config", str(path)], {"TIDEGATE_ENGINE__HF_OVERRIDES__B": "3"})
    assert value(whole, "engine.hf_overrides") == {"c": 3}
    assert value(part, "engine.hf_overrides") == {"a": 1, "b": 3}


def test_the_last_of_two_equal_options_wins() -> None:
    assert load(["--server.port", "1", "--server.port", "2"], {}).server.port == 2


def test_settings_built_in_code_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_SERVER__PORT", "1")
    monkeypatch.setenv("SERVER", '{"port": 2}')
    assert Settings().server.port == 8000
    assert load([]).server.port == 1


# --- text becomes values


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        # declared numbers, switches and choices
        ("server.port", "80", 80),
        ("server.port", " 80\n", 80),
        ("server.ops_port", "null", None),
        ("server.keep_alive_s", "5", 5.0),
        ("metrics.require_key", "true", True),
        ("metrics.require_key", "True", True),
        ("admission.reject_status", "503", 503),
        ("admission.max_pending", "0", 0),
        ("lifecycle.drain_settle_s", "0", 0.0),
        ("engine.gpu_memory_utilization", "1", 1.0),
        ("logging.level", "WARNING", "warning"),
        # declared strings stay what they are
        ("engine.model", "123", "123"),
        ("engine.model", "true", "true"),
        ("engine.model", "/models/[x]", "/models/[x]"),
        ("engine.model", "null", None),
        ("engine.served_model_name", "1.10", "1.10"),
        ("engine.served_model_name", "[a, 2]", ["a", "2"]),
        ("engine.served_model_name", "a,b", "a,b"),
        ("server.host", "::1", "::1"),
        ("server.root_path", "null", "null"),
        # lists
        ("server.cors_origins", "*", ("*",)),
        ("server.cors_origins", "https://a.example, https://b.example",
         ("https://a.example", "https://b.example")),
        ("server.cors_origins", '["https://a.example"]', ("https://a.example",)),
        ("server.cors_origins", "", ()),
        # open groups: YAML scalars and JSON
        ("engine.enforce_eager", "true", True),
        ("engine.max_model_len", "512", 512),
        ("engine.seed", "-1", -1),
        ("engine.cpu_offload_gb", "0.5", 0.5),
        ("engine.watermark", "1e-3", 0.001),
        ("engine.tokenizer", "null", None),
        ("engine.ignore_patterns", "[a, b]", ["a", "b"]),
        ("engine.hf_overrides", '{"x":1, "y": {"z": [true, null]}}',
         {"x": 1, "y": {"z": [True, None]}}),
        ("frontend.tool_call_parser", "hermes", "hermes"),
        ("frontend.lora_modules", "sql=/adapters/sql", "sql=/adapters/sql"),
        # open groups: text that YAML 1.1 would damage
        ("engine.revision", "2024-01-01", "2024-01-01"),
        ("engine.revision", "0123456", "0123456"),
        ("engine.revision", "12345e7", "12345e7"),
        ("engine.revision", "1_000", "1_000"),
        ("engine.revision", '"1234567"', "1234567"),
        ("engine.master_addr", "10.0.0.1", "10.0.0.1"),
        ("engine.a", "12:30:45", "12:30:45"),
        ("engine.a", "=", "="),
        ("engine.a", "<<", "<<"),
        ("engine.a", "*x", "*x"),
        ("engine.a", "a: b", "a: b"),
        ("engine.a", "# x", "# x"),
        ("engine.a", "", ""),
        ("engine.a", " x ", " x "),
        ("frontend.chat_template", "{% for m in messages %}", "{% for m in messages %}"),
        ("frontend.chat_template", "{{ messages }}", "{{ messages }}"),
        ("frontend.chat_template", "[INST] {{ m }} [/INST]", "[INST] {{ m }} [/INST]"),
    ],
)  # fmt: skip
def test_text_of_command_line_and_environment(key: str, text: str, expected: Any) -> None:
    variable = "TIDEGATE_" + key.replace(".", "__").upper()
    for settings in [
        load([f"--{key}", text], {}),
        load([f"--{key}={text}"], {}),
        load([], {variable: text}),
        load([], {variable.lower(): text}),
    ]:
        assert value(settings, key) == expected
        assert type(value(settings, key)) is type(expected)


def test_hyphens_are_read_as_underscores_but_not_below_the_key() -> None:
    settings = load(["--engine.max-num-seqs", "4", "--engine.hf-overrides.a-b", "1"], {})
    assert settings.engine.max_num_seqs == 4
    assert value(settings, "engine.hf_overrides") == {"a-b": 1}


@given(text=st.text())
@hypothesis_settings(deadline=None)
@example(text="[" * 2000)
@example(text="9" * 5000)
@example(text="!!int x")
@example(text="[!!bool x]")
@example(text="'\x00'")
def test_any_text_is_a_value_of_an_open_group(text: str) -> None:
    settings = load([f"--engine.a={text}"], {})
    assert settings.engine.model_extra is not None
    assert "a" in settings.engine.model_extra


@given(text=st.text(min_size=1).filter(lambda text: text != "null"))
def test_any_text_is_kept_by_a_declared_string(text: str) -> None:
    assert load([], {"TIDEGATE_ENGINE__MODEL": text}).engine.model == text


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("", "server.port", 8000),
        ("# nothing\n", "server.port", 8000),
        ("server:\n  # port: 1\n", "server.port", 8000),
        ("---\nserver: {port: 1}\n...\n", "server.port", 1),
        (b"\xef\xbb\xbfserver: {port: 1}", "server.port", 1),
        ("engine: {served_model_name: 123}", "engine.served_model_name", "123"),
        ("engine: {served_model_name: [1.10, no]}", "engine.served_model_name", ["1.10", "no"]),
        ("engine: {model: 0x1F}", "engine.model", "0x1F"),
        ("engine: {model: null}", "engine.model", None),
        ("engine: {model: ~}", "engine.model", None),
        ("engine: {revision: 2024-01-01}", "engine.revision", "2024-01-01"),
        ("engine: {enforce_eager: yes}", "engine.enforce_eager", True),
        ("engine: {hf_overrides: {1: [a, 2.5]}}", "engine.hf_overrides", {1: ["a", 2.5]}),
        ("engine: {a: &x {n: 1}, b: {<<: *x, m: 2}}", "engine.b", {"n": 1, "m": 2}),
        ("server: {cors_origins: [http://a, http://b]}", "server.cors_origins",
         ("http://a", "http://b")),
        ("frontend:\n  chat_template: |\n    {% if a %}\n    x\n", "frontend.chat_template",
         "{% if a %}\nx\n"),
        ("auth: {keys_file: 1.yaml}\nserver: {ops_port: 1}", "auth.keys_file", Path("1.yaml")),
    ],
)  # fmt: skip
def test_files(tmp_path: Path, text: str | bytes, key: str, expected: Any) -> None:
    assert value(from_file(tmp_path, text), key) == expected


# --- refusals: the key, where it came from, the nearest valid one


@dataclass(frozen=True)
class Bad:
    """A value that is refused: `says` is the reason, or for an unknown key the suggestion."""

    key: str
    text: str
    says: str

    def line(self, origin: str) -> str:
        if self in UNKNOWN:
            hint = f"; did you mean {self.says}?" if self.says else ""
            return f"unknown key {self.key} ({origin}){hint}"
        return f"{self.key} {self.says} ({origin})"


UNKNOWN = [
    Bad("server.por", "1", "server.port"),
    Bad("server.keep_alive", "1", "server.keep_alive_s"),
    Bad("server.max_num_seqs", "1", "engine.max_num_seqs"),
    Bad("admission.poll_intervals", "1", "metrics.poll_interval_s"),
    Bad("logging.zzzzzzzzz", "1", ""),
]

WRONG = [
    Bad("server.port", "abc", "must be an integer, not 'abc'"),
    Bad("server.port", "true", "must be an integer, not True"),
    Bad("server.port", "80.0", "must be an integer, not 80.0"),
    Bad("server.port", "'80'", "must be an integer, not '80'"),
    Bad("server.port", "{a: 1}", "must be an integer, not a mapping"),
    Bad("server.ops_port", "[1]", "must be an integer or none, not a list"),
    Bad("server.port", "0", "must be greater than or equal to 1, not 0"),
    Bad("server.port", "65536", "must be less than or equal to 65535, not 65536"),
    Bad("server.max_body_bytes", "0", "must be greater than 0, not 0"),
    Bad("server.trust_routing_headers", "1", "must be true or false, not 1"),
    Bad("server.keep_alive_s", ".inf", "must be a finite number, not inf"),
    Bad("engine.max_num_seqs", "0", "must be greater than 0, not 0"),
    Bad("engine.max_num_batched_tokens", "-1", "must be greater than 0, not -1"),
    Bad("engine.gpu_memory_utilization", "0", "must be greater than 0, not 0"),
    Bad("engine.gpu_memory_utilization", "1.1", "must be less than or equal to 1, not 1.1"),
    Bad("engine.gpu_memory_utilization", ".nan", "must be a finite number, not nan"),
    Bad("engine.served_model_name", "[]", "must not be empty"),
    Bad("admission.max_pending", "-1", "must be greater than or equal to 0, not -1"),
    Bad("admission.reject_status", "500", "must be one of 429, 503, not 500"),
    Bad("admission.max_sequences_per_request", "0", "must be greater than 0, not 0"),
    Bad("admission.queue_timeout_s", "30s", "must be a number, not '30s'"),
    Bad("admission.ttft_slo_s", "0", "must be greater than 0, not 0"),
    Bad("metrics.poll_interval_s", "0", "must be greater than 0, not 0"),
    Bad("metrics.saturation_threshold", "-1", "must be greater than or equal to 0, not -1"),
    Bad("metrics.step_records", "-1", "must be greater than or equal to 0, not -1"),
    Bad("lifecycle.drain_settle_s", "-1", "must be greater than or equal to 0, not -1"),
    Bad("lifecycle.stall_timeout_s", "0", "must be greater than 0, not 0"),
    Bad("logging.format", "xml", "must be one of json, console, not 'xml'"),
    Bad("logging.level", "hi", "must be one of debug, info, warning, error, critical, not 'hi'"),
    Bad("server.port", "http://me:hunter2@host", "must be an integer, not 'http://***@host'"),
]  # fmt: skip

IMPOSSIBLE = [
    Bad("server.ops_port", "8000", "must differ from server.port"),
    Bad("auth.keys_file", "k.yaml", "needs server.ops_port, or metrics.require_key: true; "
        "otherwise Prometheus, which has no key, would be locked out of /metrics"),
    Bad("metrics.step_records", "9", "needs server.ops_port, where GET /admin/steps is"),
    Bad("lifecycle.stall_timeout_s", "121", "does not fit: lifecycle.stall_timeout_s "
        "(not ready) may not be above lifecycle.dead_after_s (not live)"),
    Bad("lifecycle.dead_after_s", "29", "does not fit: lifecycle.stall_timeout_s "
        "(not ready) may not be above lifecycle.dead_after_s (not live)"),
    Bad("engine.max_num_seqs", "9000", "does not fit: engine.max_num_batched_tokens must be "
        "at least engine.max_num_seqs, one token for each slot"),
    Bad("engine.max_num_queued_reqs", "1",
        "cannot be set, admission is ours; use admission.max_pending"),
    Bad("engine.max_num_queued_tokens", "1",
        "cannot be set, admission is ours; use admission.max_pending"),
    Bad("engine._api_process_count", "1",
        "is internal to vLLM and cannot be set"),
    Bad("frontend._x", "1", "is internal to vLLM and cannot be set"),
]  # fmt: skip

ALL_BAD = [*UNKNOWN, *WRONG, *IMPOSSIBLE]


@pytest.mark.parametrize("bad", ALL_BAD, ids=lambda bad: f"{bad.key}={bad.text}")
def test_refused_from_the_command_line(bad: Bad) -> None:
    line = refusal([f"--{bad.key}", bad.text])
    assert line == bad.line(f"command line --{bad.key}")


@pytest.mark.parametrize("bad", ALL_BAD, ids=lambda bad: f"{bad.key}={bad.text}")
def test_refused_from_the_environment(bad: Bad) -> None:
    variable = "TIDEGATE_" + bad.key.replace(".", "__").upper()
    line = refusal(environ={variable: bad.text})
    assert line == bad.line(f"environment variable {variable}")


@pytest.mark.parametrize("bad", ALL_BAD, ids=lambda bad: f"{bad.key}={bad.text}")
def test_refused_from_a_file(tmp_path: Path, bad: Bad) -> None:
    group, _, name = bad.key.partition(".")
    path = write(tmp_path, f"# a profile\n{group}:\n  {name}: {bad.text}\n")
    assert refusal(["--config", str(path)]) == bad.line(f"{path} line 3")


def test_a_stronger_good_value_heals_a_wrong_one_but_not_an_unknown_key(tmp_path: Path) -> None:
    path = write(tmp_path, "server: {port: abc}")
    assert load(["--config", str(path), "--server.port", "1"], {}).server.port == 1
    path = write(tmp_path, "server: {prot: 1}")
    assert "server.prot" in refusal(["--config", str(path), "--server.port", "1"])


def test_keys_file_with_either_way_out_for_prometheus() -> None:
    for way_out in (["--server.ops_port", "9000"], ["--metrics.require_key", "true"]):
        settings = load(["--auth.keys_file", "keys.yaml", *way_out], {})
        assert settings.auth.keys_file == Path("keys.yaml")


def test_bounds_that_are_allowed() -> None:
    settings = load(
        ["--lifecycle.stall_timeout_s", "7", "--lifecycle.dead_after_s", "7",
         "--engine.max_num_seqs", "8", "--engine.max_num_batched_tokens", "8"], {},
    )  # fmt: skip
    assert settings.lifecycle.stall_timeout_s == settings.lifecycle.dead_after_s


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--server.port"], "server.port has no value; write --server.port value (command line)"),
        (["--engine.enforce_eager", "--server.port", "1"],
         "engine.enforce_eager has no value; write --engine.enforce_eager value (command line)"),
        (["--config"], "config has no value; write --config value (command line)"),
        (["--config", "a", "--config", "b"], "--config is given twice (command line)"),
        (["serve"], "argument 1 is not an option; write --group.key value (command line)"),
        (["--server.port", "1", "-v"],
         "argument 3 is not an option; write --group.key value (command line)"),
        (["--"], "argument 1 is not an option; write --group.key value (command line)"),
        (["--engin.max_num_seqs", "1"], ("unknown key engin.max_num_seqs "
         "(command line --engin.max_num_seqs); did you mean engine.max_num_seqs?")),
        (["--port", "1"], "unknown key port (command line --port); did you mean server.port?"),
        (["--max-num-seqs=1"],
         ("unknown key max_num_seqs (command line --max-num-seqs); "
         "did you mean engine.max_num_seqs?")),
        (["--server.port.x", "1"],
         "unknown key server.port.x (command line --server.port.x); did you mean server.port?"),
        (["--engine.", "1"], ("unknown key engine (command line --engine.); "
         "did you mean engine.model?")),
        (["--engine.a..b", "1"], ("unknown key engine.a..b (command line --engine.a..b); "
         "did you mean engine.model?")),
        (["--engine.model="], ("engine.model must not be empty "
         "(command line --engine.model)")),
        (["--auth.keys_file="], "auth.keys_file must name a file (command line --auth.keys_file)"),
        (["--server.port="], "server.port must be an integer, not '' (command line --server.port)"),
    ],
)  # fmt: skip
def test_refused_command_lines(argv: Sequence[str], says: str) -> None:
    assert refusal(argv) == says


# --- the environment


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TIDEGATE_PORT", "tcp://10.0.0.1:8000"),
        ("TIDEGATE_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("TIDEGATE_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("TIDEGATE_PORT_8000_TCP_PORT", "8000"),
        ("TIDEGATE_PORT_8000_TCP_PROTO", "tcp"),
        ("TIDEGATE_SERVICE_HOST", "10.0.0.1"),
        ("TIDEGATE_SERVICE_PORT", "8000"),
        ("TIDEGATE_SERVICE_PORT_HTTP", "8000"),
        ("TIDEGATE_SERVICE_PORT_HTTP__API", "8000"),
        ("TIDEGATE_METRICS_SERVICE_HOST", "10.0.0.1"),
        ("TIDEGATE_METRICS_PORT", "udp://10.0.0.1:9000"),
        ("TIDEGATE_SERVER_PORT", "tcp://10.0.0.1:8000"),
        ("TIDEGATE_INTERNAL_PARENT", "12"),
        ("tidegate_internal_x__y", "12"),
        ("TIDEGATEKEEPER__X", "1"),
        ("OTHER_SERVER__PORT", "1"),
    ],
)
def test_variables_that_are_not_ours(name: str, text: str) -> None:
    assert load([], {name: text}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("TIDEGATE_PORT", "8000",
         "unknown environment variable TIDEGATE_PORT; did you mean TIDEGATE_SERVER__PORT?"),
        ("TIDEGATE_SERVER_PORT", "8000",
         "unknown environment variable TIDEGATE_SERVER_PORT; did you mean TIDEGATE_SERVER__PORT?"),
        ("TIDEGATE_MAX_NUM_SEQS", "8", ("unknown environment variable TIDEGATE_MAX_NUM_SEQS; "
         "did you mean TIDEGATE_ENGINE__MAX_NUM_SEQS?")),
        ("tidegate_ops_prot", "8", ("unknown environment variable tidegate_ops_prot; "
         "did you mean TIDEGATE_SERVER__OPS_PORT?")),
        ("TIDEGATE_QQQQQQ", "8", "unknown environment variable TIDEGATE_QQQQQQ"),
        ("TIDEGATE_", "8", "unknown environment variable TIDEGATE_"),
        ("TIDEGATE_SERVER__PORT__X", "tcp://10.0.0.1:1", ("unknown key server.port.x "
         "(environment variable TIDEGATE_SERVER__PORT__X); did you mean server.port?")),
        ("PROMETHEUS_MULTIPROC_DIR", "/tmp", ("PROMETHEUS_MULTIPROC_DIR must not be set: it labels "
         "gauges by process and exports dead ones "
         "(environment variable PROMETHEUS_MULTIPROC_DIR)")),
        ("PROMETHEUS_MULTIPROC_DIR", "", ("PROMETHEUS_MULTIPROC_DIR must not be set: it labels "
         "gauges by process and exports dead ones "
         "(environment variable PROMETHEUS_MULTIPROC_DIR)")),
        ("VLLM_WORKER_MULTIPROC_METHOD", "fork", ("VLLM_WORKER_MULTIPROC_METHOD must not be fork: "
         "a forked engine process would hold the listening socket; leave it out or set it to spawn "
         "(environment variable VLLM_WORKER_MULTIPROC_METHOD)")),
    ],
)  # fmt: skip
def test_refused_variables(name: str, text: str, says: str) -> None:
    assert refusal(environ={name: text}) == says


def test_spawn_is_allowed() -> None:
    assert load([], {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}) == Settings()


# --- files that cannot be used


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n", "the file must be a mapping of keys ({path})"),
        ("just text", "the file must be a mapping of keys ({path})"),
        ("\nserver: 5", "server must be a mapping of keys ({path} line 2)"),
        ("server: [a]", "server must be a mapping of keys ({path} line 1)"),
        ("[a]: 1", "the file has a key that is no name ({path})"),
        ("sever: {port: 1}", "unknown key sever ({path} line 1); did you mean server?"),
        ("port: 1", "unknown key port ({path} line 1); did you mean server.port?"),
        ("server.port: 1", ("unknown key 'server.port': in a file, write the key below its group "
         "({path} line 1)")),
        ("5: {}", "unknown key 5 ({path} line 1)"),
        ("server: {port: 1}\nengine: {}\nserver: {}",
         "key 'server' is given twice ({path} line 3)"),
        ("server:\n  port: 1\n  port: 2", "key 'port' is given twice ({path} line 3)"),
        ("engine:\n  hf_overrides:\n    a: 1\n    a: 2",
         "key 'a' is given twice ({path} line 4)"),
        ("engine: {a: [{b: 1, b: 2}]}", "key 'b' is given twice ({path} line 1)"),
        ("server:\n\tport: 1", "tabs cannot indent YAML, use spaces ({path} line 2)"),
        ("server: {port: 1", "expected ',' or '}}', but got '<stream end>' ({path} line 1)"),
        ("server: {port: *hunter2}", "found undefined alias ({path} line 1)"),
        ("engine: {a: !hunter2 x}",
         "could not determine a constructor for the tag ({path} line 1)"),
        ("engine: {a: !!python/name:os.system }",
         "could not determine a constructor for the tag ({path} line 1)"),
        ("engine: {a: !!timestamp hunter2}",
         "could not determine a constructor for the tag ({path} line 1)"),
        ("engine: {a: !!int hunter2}", "value cannot be read ({path} line 1)"),
        ("engine: {a: !!bool hunter2}", "value cannot be read ({path} line 1)"),
        ("a: 1\n---\nb: 2", "but found another document ({path} line 2)"),
        ("engine: {a: &a [*a]}", "found unconstructable recursive node ({path} line 1)"),
        ("engine: {a: " + "[" * 2000, "not valid YAML ({path})"),
        (b"engine: {a: \x00}", "not valid YAML ({path})"),
        (b"a: \xff", "{path}: is not UTF-8 text, at byte 3 (command line --config)"),
    ],
)  # fmt: skip
def test_unusable_files(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = write(tmp_path, text)
    assert refusal(["--config", str(path)]) == says.format(path=path)


def test_unusable_paths(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    for path, reason in [
        (tmp_path / "missing.yaml", "no such file"),
        (tmp_path, "is a directory, not a file"),
        # Stands for every error of the operating system; permissions do not bind root.
        (loop, "cannot be read: Too many levels of symbolic links"),
    ]:
        assert refusal(["--config", str(path)]) == f"{path}: {reason} (command line --config)"
    assert "is not a file name" in refusal(["--config", "a\0b"])


# --- derived values


def test_effective_max_pending() -> None:
    assert load([], {}).effective_max_pending == 1024
    assert load(["--engine.max_num_seqs", "2"], {}).effective_max_pending == 8
    assert load(["--admission.max_pending", "0"], {}).effective_max_pending == 0


def test_arguments_are_what_is_set_and_nobody_can_change_them() -> None:
    settings = load(
        ["--engine.hf_overrides", "{a: 1}", "--engine.tokenizer", "null",
         "--frontend.chat_template", "t.jinja", "--frontend.response_role", "null"], {},
    )  # fmt: skip
    arguments = settings.engine.arguments()
    assert arguments == {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.9,
        "hf_overrides": {"a": 1},
    }
    arguments["hf_overrides"]["a"] = 2
    assert settings.engine.arguments()["hf_overrides"] == {"a": 1}
    assert settings.frontend.arguments() == {"chat_template": "t.jinja"}
    assert FrontendSettings().arguments() == {}


def test_origin_of_a_deeper_key_is_that_of_the_key_above() -> None:
    settings = load(["--engine.hf_overrides", "{a: 1}"], {"TIDEGATE_ENGINE__X__Y": "1"})
    assert settings.origin("engine.hf_overrides.a") == "command line --engine.hf_overrides"
    assert settings.origin("engine.x.y") == "environment variable TIDEGATE_ENGINE__X__Y"
    assert settings.origin("engine.nothing") == "default"


def test_the_engine_room_can_refuse_a_key_in_the_same_words() -> None:
    settings = load(["--engine.max_num_seq", "8"], {})
    error = unknown_key(
        "engine.max_num_seq", settings.origin("engine.max_num_seq"), ["engine.max_num_seqs"]
    )
    assert str(error) == (
        "unknown key engine.max_num_seq (command line --engine.max_num_seq); "
        "did you mean engine.max_num_seqs?"
    )


# --- what is shown

SECRET_ARGV = [
    "--engine.hf_token", "hunter2",
    "--engine.kv_transfer_config",
    ('{"extra": [{"API-Key": "hunter2", "db_password": "hunter2", "authToken": "hunter2"}],'
    ' "headers": {"Authorization": "Bearer hunter2"}, "client_secret": {"a": "hunter2"},'
    ' "url": "redis://me:hunter2@host/0", "git": "https://hunter2@host/x",'
    ' "http": "https://host/x?token=hunter2&b=1"}'),
    "--frontend.api_key", "[hunter2]",
]  # fmt: skip


def test_dump_masks_secrets_and_nothing_else() -> None:
    settings = load([*SECRET_ARGV, "--engine.tokenizer", "hf/tok", "--engine.spec_tokens", "5"], {})
    shown = yaml.safe_load(dump(settings))
    assert "hunter2" not in dump(settings)
    assert shown["engine"]["kv_transfer_config"] == {
        "extra": [{"API-Key": "***", "db_password": "***", "authToken": "***"}],
        "headers": {"Authorization": "***"},
        "client_secret": "***",
        "url": "redis://***@host/0",
        "git": "https://***@host/x",
        "http": "https://host/x?token=***&b=1",
    }
    assert shown["frontend"]["api_key"] == "***"
    assert shown["engine"]["tokenizer"] == "hf/tok"
    assert shown["engine"]["spec_tokens"] == 5
    assert shown["engine"]["max_num_batched_tokens"] == 8192


def test_other_ways_to_show_settings_are_masked_too() -> None:
    settings = load(SECRET_ARGV, {})
    for text in (repr(settings), str(settings), repr(settings.engine), f"{settings.frontend}"):
        assert "hunter2" not in text
        assert "***" in text


@pytest.mark.parametrize(
    "argv",
    [
        [*SECRET_ARGV, "--server.port", "x"],
        [*SECRET_ARGV, "--engine.max_num_queued_reqs", "1"],
        ["--engine.hf_token", "--hunter2"],
        ["--engine.hf_token=", "hunter2"],
        ["--hf_tokn=hunter2"],
        ["--server.hf_token", "hunter2"],
    ],
)
def test_refusals_show_no_secret(argv: Sequence[str]) -> None:
    assert "hunter2" not in refusal(argv)


def test_errors_of_settings_built_in_code_show_no_value() -> None:
    with pytest.raises(ValidationError) as caught:
        EngineSettings.model_validate({"max_num_seqs": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_masked_keeps_an_unset_secret_visible() -> None:
    assert masked({"hf_token": None, "api_key": ""}) == {"hf_token": None, "api_key": "***"}


def test_dump_can_be_read_again(tmp_path: Path) -> None:
    settings = load(
        ["--auth.keys_file", "k.yaml", "--server.ops_port", "9", "--server.cors_origins", "*,b",
         "--engine.model", "123", "--engine.a", "'1e-5'", "--engine.b", "0.00001",
         "--engine.revision", "2024-01-01", "--engine.c", "'yes'", "--engine.d", "0123",
         "--engine.e", "[null, 'null', '', é]", "--admission.max_pending", "7"], {},
    )  # fmt: skip
    again = from_file(tmp_path, dump(settings))
    assert again.model_dump() == settings.model_dump()


def test_dump_shows_the_effective_bound() -> None:
    assert yaml.safe_load(dump(Settings()))["admission"]["max_pending"] == 1024


def test_describe_has_every_key_once_with_its_default() -> None:
    rows = [re.split(r"\s*\|\s*", line)[1:5] for line in describe().splitlines()]
    by_key = {row[0]: row for row in rows}
    expected = [f"{group}.{name}" for group, names in CONTRACT_DEFAULTS.items() for name in names]
    assert [row[0] for row in rows[2:] if not row[0].endswith("*")] == expected
    assert by_key["server.keep_alive_s"][1:3] == ["number", "650.0"]
    assert by_key["server.ops_port"][1:3] == ["integer or none", "none"]
    assert by_key["admission.reject_status"][1:3] == ["one of 429, 503", "429"]
    assert by_key["server.cors_origins"][1:3] == ["list of strings", "[]"]
    assert by_key["auth.keys_file"][1:3] == ["path or none", "none"]
    assert "AsyncEngineArgs" in by_key["engine.*"][3]
    assert all(row[3] for row in rows)


def test_settings_import_nothing_heavy() -> None:
    heavy = {"vllm", "torch", "transformers", "fastapi", "uvicorn", "numpy"}
    code = f"import sys, app.settings; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
