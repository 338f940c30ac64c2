"""Our settings against vllm's own parser."""

from pathlib import Path

import pytest

from app.engine.arguments import NO_DOMAIN, parse_arguments
from app.settings import Settings, SettingsError, load

PROFILES = sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))


def settings(*arguments: str) -> Settings:
    return load(arguments, environ={})


def parse(*arguments: str) -> dict[str, object]:
    return vars(parse_arguments(settings(*arguments), "some/model", served_name=None))


def test_the_three_scheduler_values_arrive() -> None:
    args = parse(
        "--engine.max_num_seqs", "7",
        "--engine.max_num_batched_tokens", "777",
        "--engine.gpu_memory_utilization", "0.7",
    )  # fmt: skip
    names = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "model")
    assert [args[name] for name in names] == [7, 777, 0.7, "some/model"]


@pytest.mark.parametrize(
    ("key", "value", "name", "parsed"),
    [
        ("engine.enforce_eager", "true", "enforce_eager", True),
        ("engine.enable_prefix_caching", "false", "enable_prefix_caching", False),
        ("engine.hf_overrides", '{"a": {"b": 1}}', "hf_overrides", {"a": {"b": 1}}),
        ("engine.max_model_len", "4096", "max_model_len", 4096),
        ("engine.allowed_media_domains", "[a.example, b.example]", "allowed_media_domains",
         ["a.example", "b.example"]),
        ("engine.cudagraph_capture_sizes", "[1, 2, 4]", "cudagraph_capture_sizes", [1, 2, 4]),
        ("frontend.response_role", "bot", "response_role", "bot"),
        ("frontend.default_chat_template_kwargs", '{"enable_thinking": false}',
         "default_chat_template_kwargs", {"enable_thinking": False}),
    ],
)  # fmt: skip
def test_values_of_every_kind_arrive(key: str, value: str, name: str, parsed: object) -> None:
    assert parse(f"--{key}", value)[name] == parsed


def test_adapters_by_name_and_path() -> None:
    modules = parse("--frontend.lora_modules", '["a=/x", "b=/y"]')["lora_modules"]
    assert isinstance(modules, list)
    assert [(module.name, module.path) for module in modules] == [("a", "/x"), ("b", "/y")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine.max_modl_len", "1"), "did you mean engine.max_model_len"),
        (("--engine.tool_call_parser", "x"), "did you mean frontend.tool_call_parser"),
        (("--engine.enforce_eager", "3"), "engine.enforce_eager: neither true nor false"),
        (("--engine.max_model_len", "long"), "engine.max_model_len: invalid"),
        (("--engine.dtype", "float7"), "engine.dtype: invalid choice"),
        (("--engine.enable_log_requests", "true"), "logging.log_content"),
        (("--engine.disable_log_stats", "true"), "statistics"),
        (("--frontend.max_log_len", "3"), "logging.log_content"),
        (("--frontend.enable_scale_out", "true"), "not offered"),
        (("--frontend.host", "x"), "server.host"),
        (("--frontend.enable_auto_tool_choice", "true"), "requires frontend.tool_call_parser"),
        (("--engine.reasoning_parser", "nope"), "engine.reasoning_parser must be one of"),
        (("--frontend.chat_template", "/no/such.jinja"), "/no/such.jinja"),
    ],
)
def test_what_vllm_does_not_take_is_refused_in_one_line(
    arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(*arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_url_is_fetched_unless_its_domain_is_named() -> None:
    assert parse()["allowed_media_domains"] == [NO_DOMAIN]
    assert parse("--engine.allowed_media_domains", "[]")["allowed_media_domains"] == [NO_DOMAIN]


def test_prompts_are_logged_only_on_request() -> None:
    assert parse()["enable_log_requests"] is False
    assert parse("--logging.log_content", "true")["enable_log_requests"] is True


def test_remote_code_is_off() -> None:
    assert parse()["trust_remote_code"] is False


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.name)
def test_every_profile_passes_vllms_own_parser(profile: Path) -> None:
    parse("--config", str(profile))


def test_there_are_profiles() -> None:
    assert {"cpu-demo.yaml", "llama3-8b.yaml"} <= {path.name for path in PROFILES}


def test_the_original_values_of_the_llama_profile() -> None:
    args = parse("--config", str(next(p for p in PROFILES if p.name == "llama3-8b.yaml")))
    names = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
    assert [args[name] for name in names] == [256, 8192, 0.9]


def test_several_threads_tokenise_unless_told_otherwise() -> None:
    assert parse()["renderer_num_workers"] == 4
    assert parse("--engine.renderer_num_workers", "1")["renderer_num_workers"] == 1
    assert parse("--engine.runner", "pooling")["renderer_num_workers"] == 1
