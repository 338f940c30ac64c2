"""The planner: what it prefers, that it finds something better, and a manifest that is valid."""

from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import yaml

from loadtest.__main__ import USAGE_ERROR, main
from loadtest.simulator.candidate import Candidate, Result, manifest, neighbours
from tests.rig.server import ROOT

ONE = Candidate(64, 2048)


@pytest.mark.parametrize(
    ("good", "hours", "other_good", "other_hours"),
    [
        (0.96, 5.0, 0.97, 5.1),
        (0.95, 9.0, 0.9, 1.0),
        (0.8, 9.0, 0.7, 1.0),
    ],
)
def test_enough_first_then_cost_and_else_the_best(
    good: float, hours: float, other_good: float, other_hours: float
) -> None:
    better, worse = Result(ONE, good, hours, 1, 0), Result(ONE, other_good, other_hours, 1, 0)
    assert better.rank(0.95) < worse.rank(0.95)


def test_neighbours_differ_in_one_choice_and_are_possible() -> None:
    found = neighbours(ONE, 3, (64, 128), (100, 2048))
    fields = Candidate.__dataclass_fields__
    for other in found:
        assert sum(getattr(one, n) != getattr(other, n) for one in (ONE,) for n in fields) == 1
    assert replace(ONE, max_num_seqs=128) in found
    assert replace(ONE, least=3) in found
    assert all(other.max_num_batched_tokens >= other.max_num_seqs for other in found)


def test_the_manifest_says_what_was_played() -> None:
    found = manifest(replace(ONE, least=2), "serve", 5, 240.0)
    spec = found["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    assert [m["pods"]["target"]["averageValue"] for m in spec["metrics"]] == ["4", "48"]
    scaler = replace(ONE, least=2).autoscaler(5, 240.0)
    assert scaler.bounds.behavior is not None
    behavior = scaler.bounds.behavior
    for name, rules in (("scaleUp", behavior.up), ("scaleDown", behavior.down)):
        given = spec["behavior"][name]
        assert given["stabilizationWindowSeconds"] == rules.window_s
        assert given["policies"] == [
            {"type": policy.kind, "value": policy.value, "periodSeconds": policy.period_s}
            for policy in rules.policies
        ]
    assert len(behavior.up.policies) == 2
    assert len(replace(ONE, up_percent=0).up_policies(240.0)) == 1


@pytest.mark.parametrize("slo", [False, True])
def test_what_is_shipped_is_where_the_search_begins(slo: bool) -> None:
    """`deploy/` says it for 32 slots and a start of 180 s."""
    components = ROOT / "deploy/k8s/components"
    shipped = yaml.safe_load((components / "hpa/hpa.yaml").read_text())
    if slo:
        (patch,) = yaml.safe_load((components / "hpa-slo/hpa.yaml").read_text())
        assert (patch["op"], patch["path"]) == ("replace", "/spec/metrics")
        shipped["spec"]["metrics"] = patch["value"]
    assert shipped["spec"]["behavior"]["scaleUp"].pop("selectPolicy") == "Max"  # the default
    most = shipped["spec"]["maxReplicas"]
    first = Candidate.shipped(32, 2048, slo=slo)
    assert manifest(first, "tidegate", most, 180.0) == shipped
    assert first.autoscaler(most, 180.0).metrics[0].gauge == ("demand" if slo else "pending")
    chosen = {other.pending for other in neighbours(first, 1, (32,), (2048,))}
    assert chosen == {None} if slo else len(chosen) > 1


def test_it_finds_what_is_cheaper(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A burst of a minute in a quiet half hour: the shipped windows keep pods for too long."""
    path = tmp_path / "trace.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    times = [*range(0, 900, 3), *[900 + n / 6 for n in range(360)], *range(960, 1800, 3)]
    lines += [f"2023-11-16 18:{int(t // 60):02}:{t % 60:09.6f}0,200,200" for t in times]
    path.write_text("\n".join(lines) + "\n")
    load = ("--trace", str(path), "--start", "60", "--max-num-seqs", "8", "--most", "3")
    arguments = ("--coefficients", "roofline-8b", "--good-ttft", "5", *load)
    page = tmp_path / "new" / "plan.html"
    assert main(["plan", *arguments, "--out", str(page)]) == 0
    told = capsys.readouterr()
    assert told.err == f"{page}\n"
    text, _, document = told.out.partition("---\n")
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    shipped, found = rows["shipped"], rows["recommended"]
    assert float(found[2]) < float(shipped[2])
    assert float(found[1].rstrip("%")) >= float(shipped[1].rstrip("%"))
    assert yaml.safe_load(document)["kind"] == "HorizontalPodAutoscaler"
    content = unescape(page.read_text())
    assert f"<pre>{document.rstrip()}\n</pre>" in content
    assert all(f"<td>{cell}</td>" in content for cell in (*shipped[1:], *found[1:]))
    assert content.count('src="data:image/png;base64,') == 2
    assert main(["plan", *arguments, "--share", "1.5"]) == USAGE_ERROR
    assert main(["plan", *arguments, "--out", str(tmp_path)]) == USAGE_ERROR
    assert capsys.readouterr().out.endswith(f"---\n{document}")


def test_with_a_limit_at_the_door_it_goes_by_demand(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--rate", "1", "--minutes", "0.5", "--most", "1", "--start", "60")
    lengths = ("--prompt-tokens", "fixed:9", "--output-tokens", "fixed:9")
    arguments = ("--coefficients", "roofline-8b", *load, *lengths)
    cases = (((), False), (("--ttft-slo", "2"), True), (("--ttft-slo", "2", "--no-door"), False))
    for more, demand in cases:
        assert main(["plan", *arguments, *more]) == 0
        found = yaml.safe_load(capsys.readouterr().out.partition("---\n")[2])
        names = [metric["pods"]["metric"]["name"] for metric in found["spec"]["metrics"]]
        assert (names == ["tidegate_demand_sequences"]) is demand
