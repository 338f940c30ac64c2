"""Plans: drawn ahead from a seed, refused in one line when they cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.plan import Load, Shape, Spec, Tenant, draw, draw_users

SPEC = Spec(load=Load(kind="poisson", rate=20, duration_s=50))


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    assert draw(SPEC) == draw(SPEC)
    assert draw(SPEC) != draw(replace(SPEC, seed=1))


def test_a_change_of_lengths_leaves_the_arrivals_alone() -> None:
    longer = replace(SPEC, shape=Shape(prompt="uniform:1:1000", output="exponential:100"))
    assert [p.at for p in draw(SPEC)] == [p.at for p in draw(longer)]


def test_every_request_has_its_own_prompt() -> None:
    plan = draw(SPEC)
    assert len({p.prompt_seed for p in plan}) > 0.99 * len(plan)


@pytest.mark.parametrize(
    ("shape", "low", "high", "mean"),
    [("fixed:7", 7, 7, 7.0), ("uniform:5:15", 5, 15, 10.0), ("exponential:100", 1, 2000, 100.0)],
)
def test_lengths(shape: str, low: int, high: int, mean: float) -> None:
    plan = draw(replace(SPEC, shape=Shape(prompt=shape)))
    lengths = [p.prompt_tokens for p in plan]
    assert low <= min(lengths) <= max(lengths) <= high
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.3)


def test_tenants_get_their_shares() -> None:
    tenants = (Tenant("big", share=3), Tenant("small", share=1))
    names = [p.tenant for p in draw(replace(SPEC, tenants=tenants))]
    assert names.count("big") / len(names) == pytest.approx(0.75, abs=0.1)


def test_a_closed_loop_has_no_times() -> None:
    plan = draw(Spec(load=Load(kind="closed", concurrency=4, requests=10)))
    assert [p.at for p in plan] == [0.0] * 10


def test_a_trace_is_stretched_cut_and_scaled(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        f'{{"timestamp": {1000 * i}, "input_length": 100, "output_length": 10}}' for i in range(10)
    ]
    trace.write_text("\n".join(lines))
    load = Load(
        kind="trace", trace=str(trace), trace_kind="mooncake", time_scale=2, length_scale=0.1,
        duration_s=9,
    )  # fmt: skip
    plan = draw(Spec(load=load, shape=Shape("trace", "trace")))
    assert [p.at for p in plan] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert {(p.prompt_tokens, p.output_tokens) for p in plan} == {(10, 1)}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec(load=Load(rate=-1)), "rate"),
        (Spec(load=Load(kind="nonsense")), "unknown load"),
        (Spec(load=Load(duration_s=0)), "duration"),
        (Spec(load=Load(kind="closed", requests=5)), "--concurrency"),
        (Spec(load=Load(kind="closed", concurrency=5, requests=0)), "--requests"),
        (Spec(load=Load(kind="closed", concurrency=5, duration_s=0)), "--duration"),
        (Spec(load=Load(rate=1e12)), "more than 10,000,000 requests"),
        (Spec(load=Load(kind="constant", rate=1e12)), "more than 10,000,000 requests"),
        (Spec(load=Load(kind="bursts", rate=1e12)), "more than 10,000,000 requests"),
        (Spec(load=Load(kind="steps", rates=(1e12,))), "more than 10,000,000 requests"),
        (Spec(load=Load(kind="trace")), "--trace"),
        (Spec(load=Load(rate=0.001, duration_s=1)), "no request"),
        (Spec(load=Load(rate=9), shape=Shape(prompt="normal:5")), "use fixed:N"),
        (Spec(load=Load(rate=9), shape=Shape(prompt="fixed:x")), "use fixed:N"),
        (Spec(load=Load(rate=9), shape=Shape(output="fixed:0")), "at least 1"),
        (Spec(load=Load(rate=9), shape=Shape(output="trace")), "--output-tokens"),
        (Spec(load=Load(rate=9), tenants=(Tenant("a", share=0),)), "shares"),
    ],
)
def test_an_impossible_plan_is_one_line(spec: Spec, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        draw(spec)
    assert "\n" not in str(raised.value)


def test_any_load_can_have_the_lengths_of_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = "".join(f"2024-05-10 00:00:0{n}.0000000,{10 * n},{n}\n" for n in range(1, 6))
    file.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    load = Load(rate=50, duration_s=10, trace=str(file), length_scale=2)
    plan = draw(Spec(load=load, shape=Shape("trace", "trace")))
    assert {p.prompt_tokens for p in plan} == {20, 40, 60, 80, 100}
    assert all(p.prompt_tokens == 10 * p.output_tokens for p in plan)
    assert [p.at for p in plan] == [p.at for p in draw(Spec(load=Load(rate=50, duration_s=10)))]


def test_a_tenants_users_have_plans_of_their_own() -> None:
    tenants = (Tenant("crowd"), Tenant("one", users=1), Tenant("two", users=2))
    spec = Spec(load=Load(rate=50, duration_s=10), tenants=tenants)
    assert {p.tenant for p in draw(spec)} == {"crowd"}
    users = draw_users(spec)
    assert {name: {p.tenant for p in plan} for name, plan in users.items()} == {
        "one": {"one"},
        "two": {"two"},
    }
    every = [p for plan in (draw(spec), *users.values()) for p in plan]
    assert len({p.index for p in every}) == len(every)
    assert len({p.prompt_seed for p in every}) > 0.99 * len(every)
