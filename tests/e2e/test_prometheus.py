"""The series as Prometheus reads them: names, types, labels, values, both formats."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.rig.metrics_page import PAGE, page
from tests.rig.prometheus import Labels, Prometheus, every_second, promtool
from tests.rig.service import Samples, Service, until

OURS = ("vllm_", "tidegate_")
# Changes between two scrapes of an idle service.
MOVING = {"tidegate_engine_step_age_seconds", "tidegate_last_poll_timestamp_seconds"}
SERIES_OF_TTFT = "tidegate_time_to_first_token_seconds"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

# A contract with manifests, rules and dashboards: a change here breaks them.
SERIES = {
    "vllm_pending_requests": ("gauge", set()),
    "vllm_running_requests": ("gauge", set()),
    "vllm_kv_cache_usage_percent": ("gauge", set()),
    "vllm_kv_cache_usage_ratio": ("gauge", set()),
    "vllm_pending_tokens": ("gauge", set()),
    "tidegate_demand_sequences": ("gauge", set()),
    "tidegate_accepted_sequences_total": ("counter", {"route"}),
    "tidegate_finished_sequences_total": ("counter", {"route", "reason"}),
    "tidegate_requests_total": ("counter", {"route", "status"}),
    "tidegate_rejected_requests_total": ("counter", {"route", "status", "reason"}),
    "tidegate_queue_wait_seconds": ("histogram", {"route"}),
    "tidegate_time_to_first_token_seconds": ("histogram", {"route"}),
    "tidegate_inter_token_seconds": ("histogram", {"route"}),
    "tidegate_request_duration_seconds": ("histogram", {"route"}),
    "tidegate_prediction_error_seconds": ("histogram", {"route"}),
    "tidegate_phase": ("gauge", {"phase"}),
    "tidegate_engine_step_age_seconds": ("gauge", set()),
    "tidegate_engine_stalled_seconds": ("gauge", set()),
    "tidegate_in_flight_requests": ("gauge", set()),
    "tidegate_drain_seconds_left": ("gauge", set()),
    "tidegate_keys_reload_failed": ("gauge", set()),
    "tidegate_poll_errors_total": ("counter", set()),
    "tidegate_last_poll_timestamp_seconds": ("gauge", set()),
    "tidegate_build_info": ("gauge", {"version", "vllm_version"}),
}


@pytest.fixture(scope="module")
def used(service: Service) -> Service:
    """The shared service, once every series of ours has counted something."""
    client = service.client()
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "ignore_eos": True}
    for stream in (False, True):
        client.post("/v1/completions", json=body | {"stream": stream}).raise_for_status()
    assert client.post("/v1/completions", json=body | {"max_tokens": "many"}).status_code == 400
    return service


@pytest.fixture(scope="module")
def prometheus(used: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(every_second(used), tmp_path_factory.mktemp("prometheus")) as running:
        yield running


def text_of(service: Service, accept: str = TEXT) -> str:
    answer = service.client().get(f"{service.ops_url}/metrics", headers={"accept": accept})
    assert answer.raise_for_status().headers["content-type"].startswith(accept)
    return answer.text


def ours(families: Iterable[Metric]) -> dict[str, Metric]:
    return {family.name: family for family in families if family.name.startswith(OURS)}


def families_of(service: Service) -> dict[str, Metric]:
    """Our own, by the names that the text format gives them, without the creation times."""
    families = ours(text_string_to_metric_families(text_of(service)))
    return {
        f"{name}_total" if family.type == "counter" else name: family
        for name, family in families.items()
        if not name.endswith("_created")
    }


def test_names_types_and_labels_are_the_list(used: Service) -> None:
    shown = {
        name: (family.type, {label for sample in family.samples for label in sample.labels})
        for name, family in families_of(used).items()
    }
    for name, (kind, labels) in SERIES.items():
        bucket = {"le"} if kind == "histogram" else set()
        assert shown[name] == (kind, labels | bucket | {"model_name"}), name
    assert set(shown) == set(SERIES)


def test_no_label_is_one_that_prometheus_sets(used: Service) -> None:
    families = text_string_to_metric_families(text_of(used))
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert not labels & {"pod", "namespace", "instance", "job", "pid"}


def _is_ours(line: str) -> bool:
    """A sample or a comment of our own series, or the end of the page."""
    name = line.split(" ")[2] if line.startswith(("# HELP ", "# TYPE ")) else line
    return name.startswith(("vllm_", "tidegate_", "# EOF"))


def test_both_formats_hold_the_same_series(used: Service) -> None:
    plain = ours(text_string_to_metric_families(text_of(used)))
    # vllm lets a request that was cancelled while it waited count as minus the machine's uptime,
    # and this parser refuses a page with a sum below 0: so it sees our own lines alone.
    text = "".join(line for line in text_of(used, OPENMETRICS).splitlines(True) if _is_ours(line))
    opened = ours(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    created = {name for name in plain if name.endswith("_created")}
    assert set(opened) == set(plain) - created
    for name, family in opened.items():
        assert family.type == plain[name].type
        assert family.documentation == plain[name].documentation != ""


def test_the_engines_names_are_vllms_own_in_both_formats(used: Service) -> None:
    """The colon is legal, but OpenMetrics' encoders would make an underscore of it."""
    for accept in (TEXT, OPENMETRICS):
        lines = text_of(used, accept).splitlines()
        (running,) = [line for line in lines if line.startswith("vllm:num_requests_running{")]
        assert running == 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0'
        assert not [line for line in lines if line.startswith("vllm_num_requests_running")]


def test_a_scraper_without_a_wish_gets_text(used: Service) -> None:
    answer = used.client().get(f"{used.ops_url}/metrics", headers={"accept": "*/*"})
    assert answer.headers["content-type"] == TEXT
    assert list(text_string_to_metric_families(answer.text))


def test_promtool_has_no_complaint_about_our_own_series(used: Service) -> None:
    lines = text_of(used).splitlines(keepends=True)
    own = [
        line
        for line in lines
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(OURS)
    ]
    assert len(own) > 2 * len(SERIES)
    assert promtool("check", "metrics", text="".join(own)) == (0, "")
    # It does complain about others.
    assert promtool("check", "metrics", text="# TYPE a_bad_total gauge\na_bad_total 1\n")[0] != 0


def by_name(samples: Samples) -> dict[str, dict[Labels, float]]:
    """The scrape's samples of our own, as a query gives them."""
    named: dict[str, dict[Labels, float]] = {}
    for (name, labels), value in samples.items():
        if name.startswith(OURS):
            named.setdefault(name, {})[labels] = value
    return named


async def test_prometheus_has_every_sample_of_our_series(
    prometheus: Prometheus, used: Service
) -> None:
    await until(lambda: prometheus.target().get("health") == "up", within=30)
    await until(lambda: bool(prometheus.query("vllm_pending_requests")), within=30)
    # What was counted before Prometheus' last scrape is settled: nobody else uses the service.
    expected = by_name(used.metrics())
    for name in SERIES:
        assert any(key == name or key.removesuffix("_bucket") == name for key in expected)
    await until(
        lambda: all(same(prometheus.query(name), expected[name], name) for name in expected),
        within=30,
        every=0.5,
    )
    assert prometheus.target()["lastError"] == ""


def same(found: dict[Labels, float], expected: dict[Labels, float], name: str) -> bool:
    """Equal samples; of what moves, at least the same label sets."""
    if name in MOVING:
        return set(found) == set(expected)
    return found == pytest.approx(expected)


async def test_queries_of_rules_and_dashboards_give_one_sample(
    prometheus: Prometheus, used: Service
) -> None:
    model = frozenset({("model_name", "tiny")})
    for expression in (
        "sum by (model_name) (vllm_pending_requests + vllm_running_requests)",
        "max by (model_name) (vllm_kv_cache_usage_percent) / 100",
        'sum by (model_name) (tidegate_phase{phase="ready"})',
        f"histogram_quantile(0.9, sum by (le, model_name) ({SERIES_OF_TTFT}_bucket))",
    ):
        await until(lambda e=expression: set(prometheus.query(e)) == {model}, within=30)  # type: ignore[misc]
    assert prometheus.query('sum by (model_name) (tidegate_phase{phase="ready"})') == {model: 1}
    engine = frozenset({("model_name", "tiny"), ("engine", "0")})
    assert prometheus.query("vllm:num_requests_running") == {engine: 0}
    route = '{route="completions",status="400",reason="invalid_value"}'
    (refused,) = prometheus.query(f"tidegate_rejected_requests_total{route}").values()
    assert refused >= 1


def test_the_page_in_the_docs_is_of_this_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.rig.metrics_page"


def test_the_list_is_what_the_page_shows() -> None:
    rows = [line for line in Path(PAGE).read_text("utf-8").splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(SERIES)
