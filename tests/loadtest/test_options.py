"""Options, on the command line or in a scenario, become a Run; a wrong one becomes one line."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import options, settings
from loadtest.errors import UsageError
from loadtest.metrics import Slo
from loadtest.plan import Load, Shape, Spec, Tenant
from loadtest.servers import Serve, Url
from loadtest.settings import Run, Target

URL = "http://127.0.0.1:1234"
SCENARIOS = sorted(
    path
    for path in (Path(options.__file__).parent / "scenarios").glob("*.yaml")
    if path.name != "servers.yaml"
)


def settled(*arguments: str) -> Namespace:
    parser = options.Parser("run", "")
    options.add_arguments(parser)
    return options.settled(parser.parse_args(arguments))


def built(*arguments: str, capacity: float | None = None) -> Run:
    return options.build(settled(*arguments), URL, capacity)


def target(**fields: Any) -> Run:
    return Run(target=Target(**fields))


def load(**fields: Any) -> Run:
    return Run(spec=Spec(load=Load(**fields)))


# What is said on the command line, the same as YAML, and the run that it makes.
ROWS: list[tuple[str, str, Run]] = [
    ("", "{}", Run()),
    ("--model m", "model: m", target(model="m")),
    ("--endpoint chat", "endpoint: chat", target(endpoint="chat")),
    ("--no-stream", "stream: false", target(stream=False)),
    ("--no-ignore-eos", "ignore_eos: false", target(ignore_eos=False)),
    ("--ignore-eos", "ignore_eos: true", target(ignore_eos=True)),
    ("--timeout 5", "timeout: 5", target(timeout_s=5)),
    ("--key k=k", "key: k=k", target(key="k=k")),
    ("--header A=1 B=2=3", "header: {A: 1, B: 2=3}", target(headers={"A": "1", "B": "2=3"})),
    ('--extra {"a":{"b":[1]}}', 'extra: \'{"a":{"b":[1]}}\'', target(extra={"a": {"b": [1]}})),
    ("--metrics-url http://h/m", "metrics_url: http://h/m", target(metrics_url="http://h/m")),
    ("--load constant --rate 2.5", "{load: constant, rate: 2.5}", load(kind="constant", rate=2.5)),
    ("--rate 1e2", "rate: 1e2", load(rate=100)),
    ("--duration 9 --requests 5", "{duration: 9, requests: 5}", load(duration_s=9, requests=5)),
    ("--load gamma --cv 3", "{load: gamma, cv: 3}", load(kind="gamma", cv=3)),
    (
        "--load bursts --on 1 --off 0",
        "load: bursts\non: 1\noff: 0",
        load(kind="bursts", on_s=1, off_s=0),
    ),
    (
        "--load steps --rates 1 0 2 --step 4",
        "{load: steps, rates: [1, 0, 2], step: 4}",
        load(kind="steps", rates=(1, 0, 2), step_s=4),
    ),
    (
        "--load ramp --rate 0 --last-rate 7",
        "{load: ramp, rate: 0, last_rate: 7}",
        load(kind="ramp", rate=0, last_rate=7),
    ),
    (
        "--load trace --trace f --trace-kind mooncake --time-scale 2 --length-scale 0.5",
        "{load: trace, trace: f, trace_kind: mooncake, time_scale: 2, length_scale: 0.5}",
        load(kind="trace", trace="f", trace_kind="mooncake", time_scale=2, length_scale=0.5),
    ),
    ("--concurrency 4", "concurrency: 4", load(kind="closed", concurrency=4)),
    (
        "--prompt-tokens 7 --output-tokens uniform:1:9",
        "{prompt_tokens: 7, output_tokens: 'uniform:1:9'}",
        Run(spec=Spec(shape=Shape("fixed:7", "uniform:1:9"))),
    ),
    (
        "--tenant name=a,share=3,key=k --tenant name=b,priority=-1",
        "tenant: [{name: a, share: 3, key: k}, {name: b, priority: -1}]",
        Run(spec=Spec(tenants=(Tenant("a", 3, "k"), Tenant("b", priority=-1)))),
    ),
    (
        "--tenant name=a --tenant name=b,users=3",
        "tenant: [name=a, {name: b, users: 3}]",
        Run(spec=Spec(tenants=(Tenant("a"), Tenant("b", users=3)))),
    ),
    (
        "--probe /livez /readyz",
        "probe: [/livez, /readyz]",
        Run(target=Target(probes=("/livez", "/readyz"))),
    ),
    (
        "--load poisson --rate 3 --trace f --length-scale 0.5",
        "{load: poisson, rate: 3, trace: f, length_scale: 0.5}",
        load(rate=3, trace="f", length_scale=0.5),
    ),
    ("--seed 8", "seed: 8", Run(spec=Spec(seed=8))),
    ("--slo ttft=1 tpot=.05", "slo: {ttft: 1, tpot: .05}", Run(slo=Slo({"ttft": 1, "tpot": 0.05}))),
    ("--slo ttft=1 --slo e2e=2", "slo: [ttft=1, e2e=2]", Run(slo=Slo({"ttft": 1, "e2e": 2}))),
    ("--warmup 0 --workers 2", "{warmup: 0, workers: 2}", Run(warmup_s=0, workers=2)),
    ("--drain 3", "drain: 3", Run(drain_s=3)),
    ("--records --name n-1", "{records: true, name: n-1}", Run(keep_records=True, name="n-1")),
    ("--capacity 50", "capacity: 50", Run(capacity=50)),
    (
        "--rate 2x --capacity 50",
        "{rate: 2x, capacity: 50}",
        replace(load(rate=100), capacity=50),
    ),
]


@pytest.mark.parametrize(("words", "scenario", "run"), ROWS, ids=[row[0] for row in ROWS])
def test_command_line_and_scenario_make_the_same_run(
    words: str, scenario: str, run: Run, tmp_path: Path
) -> None:
    expected = replace(run, target=replace(run.target, base_url=URL))
    assert built(*words.split()) == expected
    file = tmp_path / "run.yaml"
    file.write_text(scenario)
    assert built("--scenario", str(file)) == expected
    assert settings.load(settings.dump(run)).capacity == run.capacity


def test_every_option_is_in_the_table() -> None:
    parser = options.Parser("run", "")
    options.add_arguments(parser)
    elsewhere = {
        *("--help", "--scenario", "--base-url", "--serve", "--serve-model", "--out"),
        *("--capacity-concurrency", "--capacity-duration"),
    }
    known = {action.option_strings[-1] for action in parser._actions}
    said = {word for words, _, _ in ROWS for word in words.split() if word.startswith("--")}
    assert {name.replace("--no-", "--") for name in known - elsewhere} == {
        name.replace("--no-", "--") for name in said
    }


# -- a scenario and the command line


def scenario(directory: Path, text: str) -> str:
    file = directory / "busy.yaml"
    file.write_text(text)
    return f"--scenario={file}"


def test_the_command_line_takes_the_place_of_a_scenario(tmp_path: Path) -> None:
    busy = scenario(tmp_path, "{rate: 5, stream: false, slo: [ttft=1], tenant: [{name: a}]}")
    run = built(busy, "--rate=6", "--stream", "--slo", "e2e=2", "--tenant", "name=b")
    assert run.spec.load.rate == 6
    assert run.target.stream
    assert run.slo == Slo({"e2e": 2})
    assert run.spec.tenants == (Tenant("b"),)
    assert built("--rate=6", busy).spec.load.rate == 6


def test_a_run_bears_the_name_of_its_scenario(tmp_path: Path) -> None:
    busy = scenario(tmp_path, "seed: 1")
    assert built(busy).name == "busy"
    assert built(busy, "--name=mine").name == "mine"


def test_another_load_leaves_what_a_scenario_says_of_its_own_load(tmp_path: Path) -> None:
    busy = scenario(tmp_path, "{load: gamma, rate: 5x, cv: 3, duration: 7}")
    given = settled(busy, "--concurrency=8")
    assert not options.needs_capacity(given)
    assert options.build(given, URL).spec.load == Load("closed", concurrency=8, duration_s=7)
    assert built(busy, "--load=poisson", "--rate=2").spec.load == Load(rate=2, duration_s=7)


def test_servers_keep_their_order() -> None:
    found = options.sources(settled("--base-url", URL, "--serve", "x {port}", "--base-url", URL))
    assert found == [Url(URL), Serve("x {port}", "x {port}"), Url(URL)]
    assert options.sources(settled()) == [Url(Target().base_url)]


def test_where_results_go() -> None:
    assert options.directory(settled()) == Path("loadtest/results")
    assert options.directory(settled("--out", "there")) == Path("there")


def test_the_key_of_the_first_tenant_that_has_one_opens_the_server() -> None:
    tenants = ("--tenant", "name=a", "name=b,key=k")
    assert options.key(settled()) is None
    assert options.key(settled(*tenants)) == "k"
    assert options.key(settled(*tenants, "--key=own")) == "own"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenarios_that_come_along(path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:56.6805900,396,109\n"
    )
    given = settled("--scenario", str(path), *(["--trace", str(trace)] * ("trace" in path.stem)))
    options.check(given)
    # What is compared with other clients is what they measure; all else is judged by SLOs.
    judged = options.build(given, URL, capacity=10).slo is not None
    assert judged is (path.stem != "agreement")


def test_a_trace_scenario_wants_its_trace() -> None:
    (path,) = (path for path in SCENARIOS if path.stem == "trace")
    with pytest.raises(UsageError, match="--trace"):
        options.check(settled("--scenario", str(path)))


# -- rates relative to the capacity


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--rate 2", False),
        ("--rate 2x", True),
        ("--load ramp --rate 1 --last-rate 2x", True),
        ("--load steps --rates 1 0.5x", True),
        ("--rate 2x --capacity 5", False),
    ],
)
def test_when_a_capacity_must_be_measured(words: str, needed: bool) -> None:
    assert options.needs_capacity(settled(*words.split())) is needed


def test_relative_rates_are_multiples_of_the_capacity() -> None:
    run = built("--load=steps", "--rates", "0.5x", "3", "2x", capacity=10)
    assert run.spec.load.rates == (5, 3, 20)
    assert run.capacity == 10


def test_the_capacity_is_measured_by_a_closed_loop_of_the_same_shape() -> None:
    given = settled(
        *("--load=gamma", "--rate=2x", "--cv=2", "--duration=90", "--requests=9", "--seed=3"),
        *("--prompt-tokens=5", "--no-stream", "--endpoint=chat", "--tenant", "name=a,key=k"),
        *("--warmup=30", "--name=n"),
    )
    run = options.capacity_run(given, URL)
    assert run.spec.load == Load("closed", concurrency=64, duration_s=20)
    assert (run.spec.shape.prompt, run.spec.tenants) == ("fixed:5", (Tenant("a", key="k"),))
    assert (run.target.stream, run.target.endpoint, run.target.base_url) == (False, "chat", URL)
    assert run.warmup_s < 20
    assert run.name == "n-capacity"
    # What it sends must not be in a prefix cache when the run itself comes.
    assert run.spec.seed != options.build(given, URL, 1).spec.seed


def test_how_the_capacity_is_measured_can_be_said() -> None:
    given = settled("--rate=2x", "--capacity-concurrency=3", "--capacity-duration=8")
    load = options.capacity_run(given, URL).spec.load
    assert (load.concurrency, load.duration_s) == (3, 8)


# -- what is wrong


WRONG = [
    ("--rate -1", "--rate: must be a number of at least 0"),
    ("--rate=-inf", "--rate"),
    ("--rate nan", "--rate: must be a number of at least 0, not nan"),
    ("--rate infx", "--rate"),
    ("--rate fast", "'fast' is no rate"),
    ("--load steps --rates 1 -2", "--rates"),
    ("--duration 0", "--duration: must be above 0"),
    ("--workers 0", "--workers: must be at least 1"),
    ("--seed -1", "--seed"),
    ("--concurrency 1.5", "--concurrency"),
    ("--load sinus", "invalid choice: 'sinus'"),
    ("--rat 5", "unrecognized arguments: --rat"),
    ("--base-url localhost:8000", "http://"),
    ("--metrics-url metrics", "http://"),
    ("--serve nothing", "nothing"),
    ("--header A", "NAME=VALUE"),
    ("--extra [1]", "JSON object"),
    ("--extra {", "no JSON"),
    ("--slo ttft", "'ttft'"),
    ("--slo tfft=1", "of ttft, tpot, e2e"),
    ("--slo ttft=0", "above 0"),
    ("--tenant share=1", "a tenant needs a name"),
    ("--tenant nam=a", "unknown key 'nam' (nearest: name)"),
    ("--tenant name=a,share=x", "'share=x' of a tenant is no number"),
    ("--tenant name=a name=a", "two tenants have one name"),
    ("--name a/b", "letters"),
    ("--load trace --rate 5", "--rate has no meaning with --load trace"),
    ("--load steps --duration 5", "--duration has no meaning with --load steps"),
    ("--load poisson --concurrency 5", "--concurrency has no meaning with --load poisson"),
    ("--cv 2", "--cv has no meaning with --load poisson"),
    ("--rate 0", "a rate must be above 0"),
    ("--prompt-tokens many", "use fixed:N"),
    ("--output-tokens trace", "--output-tokens"),
    ("--rate 2x --prompt-tokens many", "use fixed:N"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_option_is_one_line(words: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        options.check(settled(*words.split()))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{rate: 5, durration: 9}", "unknown key 'durration' (nearest: duration)"),
        ("scenario: other.yaml", "unknown key 'scenario'"),
        ("rate: fast", "'fast' is no rate"),
        ("rate: [1, 2]", "rate must be one value"),
        ("rate:", "--rate"),
        ("extra: {a: 1}", "extra must be one value"),
        ("stream: 1", "stream must be true or false, not '1'"),
        ("stream: [true]", "stream must be true or false"),
        ("rates: [[1]]", "rates holds a list in a list"),
        ("slo: 5", "'5' is not METRIC=SECONDS"),
        ("- rate", "no options in it"),
        ("", "no options in it"),
        ("rate: {", "no YAML"),
        ("{load: trace, rate: 5}", "--rate has no meaning with --load trace"),
    ],
)
def test_a_wrong_scenario_is_told_with_its_key(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        settled(scenario(tmp_path, text))
    assert message in str(raised.value)


def test_a_wrong_scenario_is_told_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"busy\.yaml: unknown key"):
        settled(scenario(tmp_path, "nonsense: 1"))
    with pytest.raises(UsageError, match=r"none\.yaml: No such file"):
        settled(f"--scenario={tmp_path / 'none.yaml'}")
