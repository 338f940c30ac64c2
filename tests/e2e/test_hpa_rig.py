"""What the rig of `make e2e-hpa` decides, without a control plane."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.record import Outcome, Record
from tests.e2e.hpa import manifests, report
from tests.e2e.hpa.__main__ import need
from tests.e2e.hpa.adapter import Adapter, Question, quantity
from tests.e2e.hpa.container import environment, mounted, placed
from tests.e2e.hpa.load import Phase, plan
from tests.e2e.hpa.manifests import Shipped
from tests.e2e.hpa.pod import Life
from tests.e2e.hpa.probe import Probe, Verdict, failed, hook_limit, left_for_term
from tests.e2e.hpa.scenario import SCENARIOS, Scenario, needed, one_pod
from tests.e2e.hpa.scrapes import scrape_config
from tests.e2e.hpa.verdict import (
    Criterion,
    Figures,
    Run,
    busiest,
    direction_changes,
    faults,
    figures,
    judged,
    pace,
)
from tests.e2e.hpa.watch import Sample
from tests.rig.prometheus import Labels
from tests.rig.rule import Rule
from tests.rig.shipped import adapter_rule, hpa_metrics

PENDING = "vllm_pending_requests"
RULE = Rule(
    series='{__name__=~"^vllm_.*",namespace!=""}',
    labels={"namespace": "namespace", "pod": "pod"},
    matches="^vllm_(.*)$",
    to="our_${1}",
    query="max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
)


# -- the adapter


def test_the_template_becomes_a_query_for_these_pods() -> None:
    query = RULE.pods(PENDING, "llm", ["a", "b"])
    assert query == 'max(vllm_pending_requests{namespace="llm",pod=~"a|b"}) by (pod)'


@pytest.mark.parametrize(
    ("matches", "to", "series", "metric"),
    [
        ("^(.*)$", "${1}", PENDING, PENDING),
        ("^(.*)$", "", PENDING, PENDING),
        ("^vllm_(.*)$", "our_$1", PENDING, "our_pending_requests"),
        ("^vllm_(.*)$", "${1}", "tidegate_phase", None),
    ],
)
def test_a_series_is_offered_by_its_rules_name(
    matches: str, to: str, series: str, metric: str | None
) -> None:
    parsed = Rule.parse(a_rule(name={"matches": matches, "as": to}))
    assert parsed.metric(series) == metric
    assert parsed.labels == {"namespace": "ns", "pod": "pod"}


def a_rule(**other: Any) -> dict[str, Any]:
    overrides = {"ns": {"resource": "namespace"}, "pod": {"resource": "pod"}}
    given = {
        "seriesQuery": "x",
        "resources": {"overrides": overrides},
        "metricsQuery": RULE.query,
    }
    return given | other


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"seriesFilters": [{"is": "^a"}]}, "seriesFilters"),
        ({"metricsQuery": "max(<<.Series>>) by (<<.GroupBy>>)"}, "has no LabelMatchers"),
    ],
)
def test_a_rule_that_is_not_applied_whole_is_refused(other: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rule.parse(a_rule(**other))


def test_the_shipped_rule_offers_the_metrics_of_the_hpa_by_their_own_names() -> None:
    metrics = hpa_metrics()
    assert adapter_rule().offered(metrics) == {metric: metric for metric in metrics}


@pytest.mark.parametrize(
    ("target", "question"),
    [
        ("/apis/custom.metrics.k8s.io/v1beta1", None),
        (
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/llm/pods/%2A/m?labelSelector=a%3Db%2Cc%3Dd",
            Question("llm", "*", "m", "a=b,c=d"),
        ),
        (
            "/apis/custom.metrics.k8s.io/v1beta1/namespaces/llm/pods/p1/m",
            Question("llm", "p1", "m", ""),
        ),
    ],
)
def test_a_path_is_a_question(target: str, question: Question | None) -> None:
    assert Question.parse(target) == question


class Answering:
    """Scrapes that know two series and answer each query with two pods."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def named(self, selector: str) -> set[str]:
        return {PENDING, "tidegate_phase"}

    def query(self, expression: str) -> dict[Labels, float]:
        self.asked.append(expression)
        return {frozenset({("pod", "a")}): 3.0, frozenset({("pod", "b")}): 0.5}


@pytest.mark.parametrize(
    ("path", "status", "values"),
    [
        ("pods/*/our_pending_requests?labelSelector=x", 200, {"a": "3000m", "b": "500m"}),
        ("pods/*/our_running_requests?labelSelector=x", 404, {}),
        ("pods/*/our_pending_requests?labelSelector=none", 404, {}),
    ],
)
def test_the_adapter_gives_one_value_for_each_pod(
    path: str, status: int, values: dict[str, str]
) -> None:
    scrapes: Any = Answering()
    adapter = Adapter(RULE, scrapes, lambda _, selector: [] if selector == "none" else ["a", "b"])
    given, body = adapter.answer(f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/llm/{path}")
    assert given == status
    found = {item["describedObject"]["name"]: item["value"] for item in body.get("items", [])}
    assert found == values
    if status == 200:
        assert scrapes.asked == [RULE.pods(PENDING, "llm", ["a", "b"])]


def test_what_is_offered_is_listed() -> None:
    scrapes: Any = Answering()
    adapter = Adapter(RULE, scrapes, lambda *_: [])
    status, body = adapter.answer("/apis/custom.metrics.k8s.io/v1beta1")
    assert status == 200
    assert [item["name"] for item in body["resources"]] == ["pods/our_pending_requests"]
    assert adapter.answer("/openapi/v2")[0] == 404


@pytest.mark.parametrize(("value", "text"), [(0.0, "0m"), (4.0, "4000m"), (0.6667, "666m")])
def test_quantities_are_in_thousandths(value: float, text: str) -> None:
    assert quantity(value) == text


# -- the kubelet


def probe(failures: int = 3, successes: int = 1) -> Probe:
    return Probe("/readyz", 8001, 5.0, 1.0, failures, successes)


@pytest.mark.parametrize(
    ("failures", "successes", "answers", "holds"),
    [
        (2, 1, "n", "n"),
        (2, 1, "y", "y"),
        (2, 1, "yn", "yy"),  # one miss is forgiven
        (2, 1, "ynn", "yyn"),
        (2, 1, "ynyn", "yyyy"),  # misses must be in a row
        (2, 1, "ynny", "yyny"),
        (1, 2, "yy", "ny"),
        (1, 2, "ynyy", "nnny"),
    ],
)
def test_readiness_changes_with_so_many_answers_in_a_row(
    failures: int, successes: int, answers: str, holds: str
) -> None:
    verdict, seen = Verdict(probe(failures, successes)), ""
    for answer in answers:
        before = verdict.holds
        assert verdict.observe(answer == "y") is (verdict.holds != before)
        seen += "y" if verdict.holds else "n"
    assert seen == holds


@pytest.mark.parametrize(
    ("answers", "gives_up"), [("nn", False), ("nnn", True), ("nnynn", False), ("nnynnn", True)]
)
def test_start_and_liveness_give_up_after_so_many_failures_in_a_row(
    answers: str, gives_up: bool
) -> None:
    verdict = Verdict(probe(failures=3))
    assert [failed(verdict, answer == "y") for answer in answers][-1] is gives_up


def test_a_probe_is_read_from_its_manifest() -> None:
    http = {"path": "/livez", "port": "ops"}
    assert Probe.parse({"httpGet": http}, {"ops": 1}) == Probe("/livez", 1, 10, 1, 3, 1)
    own = {"periodSeconds": 5, "timeoutSeconds": 4, "failureThreshold": 2}
    assert Probe.parse({"httpGet": http, **own}, {"ops": 1}) == Probe("/livez", 1, 5, 4, 2, 1)


@pytest.mark.parametrize(
    ("grace", "hook", "takes", "left"),
    [
        (150.0, 5.0, 5.0, 145.0),  # the hook's time is part of the grace period
        (30.0, 0.0, 0.0, 30.0),
        (10.0, 60.0, 10.0, 2.0),  # a hook that is too long leaves the least there is
    ],
)
def test_the_hook_and_the_drain_share_the_grace_period(
    grace: float, hook: float, takes: float, left: float
) -> None:
    assert hook_limit(grace, hook) == takes
    assert left_for_term(grace, takes) == left


# -- manifests


CONTAINER: dict[str, Any] = {
    "name": "tidegate",
    "args": ["--config", "/etc/tidegate/tidegate.yaml"],
    "env": [
        {"name": "HOME", "value": "/cache"},
        {"name": "A", "value": "1"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    "volumeMounts": [
        {"name": "config", "mountPath": "/etc/tidegate"},
        {"name": "cache", "mountPath": "/cache"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ],
}
VOLUMES: list[dict[str, Any]] = [
    {"name": "config", "configMap": {"name": "settings"}},
    {"name": "cache", "emptyDir": {}},
    {"name": "shm", "emptyDir": {"medium": "Memory"}},
]
BEHAVIOR: dict[str, Any] = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 180}],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 150}],
    },
}


def a_metric(name: str) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": "24"}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}


def objects(*metrics: str) -> list[dict[str, Any]]:
    pod = {"containers": [copy.deepcopy(CONTAINER)], "volumes": VOLUMES}
    scaling = {"metrics": [a_metric(name) for name in metrics], "behavior": BEHAVIOR}
    return [
        {
            "kind": "Deployment",
            "metadata": {"namespace": "llm"},
            "spec": {"template": {"spec": pod}},
        },
        {"kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v2", "spec": scaling},
        {"kind": "PodMonitor", "spec": {}},
        {
            "kind": "ConfigMap",
            "metadata": {"name": "settings"},
            "data": {"tidegate.yaml": "engine: {max_num_seqs: 32}"},
        },
        {"kind": "ConfigMap", "metadata": {"name": "not-of-the-pod"}, "data": {"a.json": "{}"}},
        {"kind": "NetworkPolicy"},
    ]


@pytest.fixture
def parts() -> Shipped:
    return manifests.shipped(objects(PENDING, "vllm_running_requests"))


def test_only_version_and_hook_are_changed_for_1_20(parts: Shipped) -> None:
    before = objects(PENDING, "vllm_running_requests")
    assert parts.hpa == before[1] | {"apiVersion": "autoscaling/v2beta2"}
    assert parts.hook == {"sleep": {"seconds": 5}}
    (container,) = before[0]["spec"]["template"]["spec"]["containers"]
    del container["lifecycle"]["preStop"]
    bare = parts.deployment["spec"]["template"]["spec"]["containers"][0]
    assert bare == {name: value for name, value in container.items() if name != "lifecycle"}
    assert [item["kind"] for item in parts.plain] == ["ConfigMap"]
    assert manifests.settings(parts) == {"engine": {"max_num_seqs": 32}}


def test_one_metric_alone(parts: Shipped) -> None:
    assert manifests.targets(manifests.only(parts, PENDING).hpa) == {PENDING: 24.0}
    assert len(manifests.targets(parts.hpa)) == 2  # the original is as it was
    with pytest.raises(KeyError, match="no metric nothing"):
        manifests.only(parts, "nothing")


def test_quicker_changes_times_alone(parts: Shipped) -> None:
    quick = manifests.quickened(parts, 4).hpa
    behavior = quick["spec"]["behavior"]
    assert behavior["scaleUp"]["policies"][0] == {"type": "Pods", "value": 2, "periodSeconds": 45}
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 150
    assert behavior["scaleDown"]["policies"][0]["periodSeconds"] == 38
    assert quick["spec"]["metrics"] == parts.hpa["spec"]["metrics"]
    assert parts.hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


def test_a_cap_changes_the_maximum_alone(parts: Shipped) -> None:
    capped = manifests.capped(parts, 5).hpa["spec"]
    assert capped == parts.hpa["spec"] | {"maxReplicas": 5}
    assert "maxReplicas" not in parts.hpa["spec"]


def test_a_container_finds_its_files_and_variables(parts: Shipped, tmp_path: Path) -> None:
    spec = parts.deployment["spec"]["template"]["spec"]
    mounts = mounted(spec, tmp_path / "pod", {"settings": tmp_path / "settings"})
    assert set(mounts) == {"/etc/tidegate", "/cache"}
    arguments = [placed(argument, mounts) for argument in spec["containers"][0]["args"]]
    assert arguments == ["--config", str(tmp_path / "settings" / "tidegate.yaml")]
    found = environment(spec["containers"][0], mounts)
    assert found == {"HOME": str(tmp_path / "pod" / "cache"), "A": "1"}
    assert Path(found["HOME"]).is_dir()
    assert placed("/cached", mounts) == "/cached"


def test_pods_are_scraped_as_their_monitor_says() -> None:
    endpoint = {"port": "ops", "path": "/m", "interval": "15s", "scrapeTimeout": "10s"}
    monitor = {
        "metadata": {"namespace": "llm", "name": "tidegate"},
        "spec": {"podMetricsEndpoints": [endpoint]},
    }
    (job,) = scrape_config(monitor, Path("t.json"))["scrape_configs"]
    assert job["job_name"] == "llm/tidegate"
    assert (job["metrics_path"], job["scrape_interval"], job["scrape_timeout"]) == (
        "/m",
        "15s",
        "10s",
    )


# -- load and verdict


@pytest.mark.parametrize(("load", "pods"), [(0.5, 1), (2.6, 4), (3.0, 4), (3.1, 5)])
def test_the_need_is_the_load_at_the_target(load: float, pods: int) -> None:
    assert needed(load, 32, 24.0) == pods


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_is_shipped_is_read_and_four_pods_hold_the_load(scenario: Scenario) -> None:
    assert need(scenario) == 4


def test_arrivals_follow_the_phases() -> None:
    planned = plan((Phase("low", 0.5, 200.0), Phase("high", 2.0, 100.0)), one_pod=4.0, tokens=8)
    times = [one.at for one in planned]
    assert times == sorted(times)
    low = sum(at < 200 for at in times)
    assert low == pytest.approx(400, rel=0.2)
    assert len(times) - low == pytest.approx(800, rel=0.2)
    assert one_pod(32) * 16 == 32  # 64 tokens of 0.25 s each


@pytest.mark.parametrize(
    ("replicas", "changes"),
    [
        ([], 0),
        ([1, 1, 3, 3, 5], 0),
        ([1, 3, 5, 5, 4], 1),
        ([3, 2, 2, 4, 3], 2),
        ([4, 3, 4, 3, 4], 3),
    ],
)
def test_direction_changes(replicas: list[int], changes: int) -> None:
    assert direction_changes(replicas) == changes


def samples(*cpu: float, starting: bool = False) -> list[Sample]:
    return [Sample(float(at), 1, 1, value, starting) for at, value in enumerate(cpu)]


def test_a_machine_is_busy_when_it_was_for_a_while_and_not_for_a_start() -> None:
    assert busiest(samples(*[100.0, 0.0] * 5), span=10) == 50.0
    calm_between = samples(*[100.0] * 9) + samples(0.0, starting=True) + samples(*[10.0] * 10)
    assert busiest(calm_between, span=10) == 10.0
    starts = samples(*[0.0] * 20, starting=True)
    assert busiest(starts, span=10) == 100.0  # never calm: nothing says that it was not busy
    assert busiest(samples(*[10.0] * 10, *[90.0] * 10), span=10) == 90.0


def test_the_pace_is_that_of_all_but_a_few() -> None:
    steps = [0.25] * 198 + [1.0, 2.0]
    done = [record(Outcome.OK) for _ in steps]
    for one, step in zip(done, steps, strict=True):
        one.first, one.last, one.output_tokens = 1.0, 1.0 + 10 * step, 11
    assert pace(done) == 0.25
    assert pace([*done, *done[-2:]]) == 1.0
    assert pace([record(Outcome.REJECTED)]) == 0.0


@pytest.mark.parametrize(
    ("life", "says"),
    [
        (Life("p", 0.0, ended=9.0, exit_status=0), ()),
        (Life("p", 0.0), ()),
        (Life("p", 0.0, ended=9.0, killed=True), ("p: killed after its grace period",)),
        (Life("p", 0.0, ended=9.0, exit_status=1), ("p: exit status 1",)),
        (Life("p", 0.0, ended=9.0, exit_status=0, fault="Fault: x"), ("p: Fault: x",)),
    ],
)
def test_faults_of_pods(life: Life, says: tuple[str, ...]) -> None:
    assert faults([life]) == says


def record(outcome: Outcome, status: int | None = None) -> Record:
    status = 429 if outcome is Outcome.REJECTED and status is None else status
    return Record(0, "default", 0.0, 8, 8, outcome=outcome, status=status)


def test_figures_of_a_run() -> None:
    run = Run(began=0.0, steady=100.0, steady_end=200.0)
    run.records = [record(o) for o in (Outcome.OK, Outcome.REJECTED, Outcome.REJECTED, Outcome.CUT)]
    run.sent = [10.0, 120.0, 150.0, 170.0]
    wanted = {90.0: 1, 110.0: 3, 150.0: 5, 190.0: 4, 210.0: 1}
    run.samples = [Sample(at, want, want - 1, 50.0, False) for at, want in wanted.items()]
    found = figures(run)
    assert (found.failed, found.rejected, found.late_rejections) == (3, 2, 1)
    assert (found.wanted, found.ready, found.settled, found.last) == (5, 4, 4, 1)
    assert found.changes == 1


def test_only_a_429_is_a_refusal() -> None:
    run = Run(began=0.0, steady=0.0, steady_end=10.0)
    run.records, run.sent = [record(Outcome.REJECTED), record(Outcome.REJECTED, 503)], [1.0, 2.0]
    run.samples = [Sample(1.0, 1, 1, 50.0, False)]
    found = figures(run)
    assert (found.failed, found.rejected) == (2, 1)
    assert found.outcomes == {"rejected": 1, "status 503": 1}


def test_the_first_step_back_under_constant_load_is_a_change() -> None:
    run = Run(began=0.0, steady=100.0, steady_end=200.0)
    wanted = {50.0: 3, 90.0: 5, 110.0: 5, 150.0: 4, 190.0: 5}
    run.samples = [Sample(at, want, 5, 50.0, False) for at, want in wanted.items()]
    assert figures(run).changes == 2  # up before; down, and up again


def test_a_report_has_what_was_seen(tmp_path: Path) -> None:
    run = Run(began=1000.0, steady=1010.0, steady_end=1020.0)
    run.records, run.sent = [record(Outcome.OK), record(Outcome.REJECTED)], [1001.0, 1012.0]
    run.samples = [Sample(1000.0 + at, 1 + at // 5, 1, 50.0, at < 3) for at in range(20)]
    run.lives = [Life("p", 999.0, started=1000.0)]
    run.series = {"pending": [(1000.0, 0.0), (1001.0, 4.0)]}
    scenario = SCENARIOS[0]
    found = figures(run)
    report.save(scenario, run, found, judged(found, ()), tmp_path)
    told = json.loads((tmp_path / "shipped.json").read_text())
    assert told["figures"]["outcomes"] == {"ok": 1, "rejected": 1}
    assert told["pods"][0] | {"started": 0.0, "created": -1.0} == told["pods"][0]
    assert told["series"]["pending"] == [[0.0, 0.0], [1.0, 4.0]]
    assert (tmp_path / "shipped.png").read_bytes().startswith(b"\x89PNG")
    assert report.row(scenario, found)[:5] == ("shipped", "2", "1", "1", "0")


def good_figures(**other: Any) -> Figures:
    given: dict[str, Any] = {
        "outcomes": {Outcome.OK: 10},
        "changes": 0,
        "wanted": 4,
        "ready": 4,
        "settled": 4,
        "last": 1,
        "late_rejections": 0,
        "pace": 0.26,
        "cpu": 50.0,
        "faults": (),
    }
    return Figures(**(given | other))


BAD: dict[str, list[dict[str, Any]]] = {
    "shipped": [
        {"outcomes": {Outcome.OK: 9, Outcome.REJECTED: 1}},
        {"outcomes": {Outcome.OK: 9, Outcome.CUT: 1}},
        {"settled": 3},
        {"settled": 6},
        {"changes": 2},
        {"last": 4},
        {"cpu": 86.0},
        {"pace": 0.4},
        {"faults": ("p: exit status 1",)},
    ],
    "pending-alone": [{"changes": 1}],
    "both": [{"changes": 2}, {"settled": 5}, {"last": 2}],
    "slo": [{"ready": 3}, {"late_rejections": 1}, {"outcomes": {Outcome.OK: 9, Outcome.CUT: 1}}],
}
GOOD: dict[str, dict[str, Any]] = {
    "pending-alone": {"changes": 2},
    "slo": {"outcomes": {Outcome.OK: 9, Outcome.REJECTED: 5}},
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_criteria_tell_good_from_bad(scenario: Any) -> None:
    def all_hold(found: Figures) -> bool:
        return all(holds for _, holds in judged(found, scenario.criteria(4)))

    good = GOOD.get(scenario.name, {})
    assert all_hold(good_figures(**good))
    for bad in BAD[scenario.name]:
        assert not all_hold(good_figures(**(good | bad))), bad


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_flapping_is_judged_where_a_pod_could_be_given_back(scenario: Any) -> None:
    kept = scenario.change(manifests.shipped(objects(PENDING, "vllm_running_requests")))
    window = kept.hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"]
    begin, end = scenario.span()
    judges = any("flap" in criterion.says for criterion in scenario.criteria(4))
    assert not judges or end - begin > 2 * window


def test_a_criterion_of_a_scenario_is_beside_the_common_ones() -> None:
    never = Criterion("never", lambda _: False)
    assert [holds for _, holds in judged(good_figures(), [never])] == [True, True, True, False]
