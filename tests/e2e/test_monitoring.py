"""Prometheus between the service and those who ask: dashboard, autoscalers, and an alert."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from deploy.monitoring.alerts import FILE, alerts
from deploy.monitoring.panels import ROWS
from deploy.monitoring.queries import Query
from tests.conftest import StartService
from tests.rig.exposition import exposed
from tests.rig.pods import (
    NAMES,
    NAMESPACE,
    adapter_answers,
    as_keda_adds,
    cluster_series,
    keda_answers,
    own_gauges,
    stalls,
    targets,
)
from tests.rig.prometheus import Labels, Prometheus, Target, every_second
from tests.rig.service import Service, hold, until
from tests.rig.shipped import adapter_rule, hpa_metrics

SLOTS, WAITING = 2, 3
STALL_S = 3
QUERIES = [query for row in ROWS for panel in row.panels for query in panel.queries]
VARIABLES = {"namespace": NAMESPACE, "model": "tiny", "__rate_interval": "10s"}


@pytest.fixture(scope="module")
def pods(service: Service, start_module_service: StartService) -> dict[str, Service]:
    """The shared service and one of our own, as the two pods of a Deployment."""
    own = start_module_service(engine__max_model_len=8192, engine__max_num_seqs=SLOTS)
    return dict(zip(NAMES, (service, own), strict=True))


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The alerts as shipped, but that an engine counts as stalled after 3 s, not 30."""
    text, shipped = FILE.read_text(encoding="utf-8"), "tidegate_engine_stalled_seconds > 30\n"
    assert text.count(shipped) == 1
    path = tmp_path_factory.mktemp("rules") / "alerts.yaml"
    path.write_text(text.replace(shipped, f"tidegate_engine_stalled_seconds > {STALL_S}\n"))
    return path


@pytest.fixture(scope="module")
def prometheus(
    pods: dict[str, Service], rules: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("prometheus")
    with exposed(cluster_series()) as cluster:
        scraped = [*targets(pods), Target(cluster)]
        with Prometheus(every_second(scraped, [rules]), directory) as running:
            yield running


@asynccontextmanager
async def load(pods: dict[str, Service]) -> AsyncIterator[None]:
    """Short requests to each pod, one after the other, and mistakes among them."""

    async def use(pod: Service) -> None:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8}
        async with pod.async_client() as client:
            while True:
                await client.post("/v1/completions", json=body)
                await client.post("/v1/completions", json=body | {"max_tokens": "many"})
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(use(pod)) for pod in pods.values()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def filled(query: Query, pod: str = "|".join(NAMES)) -> str:
    """The expression as Grafana sends it."""
    values = VARIABLES | {"pod": pod}
    return re.sub(r"\$([a-z_]\w*)", lambda found: values[found[1]], query.expression)


def shows(query: Query, found: dict[Labels, float]) -> bool:
    """Whether there is a line to draw, and its name can be written."""
    drawn = [labels for labels, value in found.items() if not math.isnan(value)]
    named = set(re.findall(r"{{(\w+)}}", query.legend))
    assert all(named <= dict(labels).keys() for labels in drawn), query
    return bool(drawn)


async def test_each_query_of_the_dashboard_shows_data(
    pods: dict[str, Service], prometheus: Prometheus
) -> None:
    missing = QUERIES

    def none_is_missing() -> bool:
        nonlocal missing
        missing = [q for q in missing if not shows(q, prometheus.query(filled(q)))]
        return not missing

    async with load(pods):
        try:
            await until(none_is_missing, within=60, every=1)
        except AssertionError:
            pytest.fail(f"no data: {[filled(query) for query in missing]}")


async def test_no_query_of_the_dashboard_shows_a_pod_that_is_not_chosen(
    prometheus: Prometheus,
) -> None:
    assert [q for q in QUERIES if prometheus.query(filled(q, pod="another"))] == []


async def test_autoscalers_read_the_gauges_and_a_stall_is_told(
    pods: dict[str, Service], prometheus: Prometheus
) -> None:
    """With the engines stopped, nothing moves between what a service says and what is scraped."""
    shared, own = pods.values()
    async with hold(shared, 2) as two:
        two.may_end = True
        with ExitStack() as stopped:
            stopped.enter_context(shared.engine_stopped())
            async with hold(own, SLOTS + WAITING, started=SLOTS, max_tokens=4000) as held:
                held.may_end = True
                stopped.enter_context(own.engine_stopped())
                await until(lambda: sequences(pods) == [(0, 2), (WAITING, SLOTS)])
                await until(lambda: adapter_answers(prometheus) == own_gauges(pods), why="adapter")
                await until(
                    lambda: keda_answers(prometheus) == as_keda_adds(own_gauges(pods)), why="KEDA"
                )
                await until(lambda: stalls(prometheus) == set(NAMES), within=STALL_S + 20)
                for alert in prometheus.firing():
                    pod = alert["labels"]["pod"]
                    assert f"{NAMESPACE}/{pod}" in alert["annotations"]["description"]
                stopped.close()
                await until(lambda: stalls(prometheus) == set(), within=20)


def sequences(pods: dict[str, Service]) -> list[tuple[float, float]]:
    """Pending and running, of each pod."""
    gauges = own_gauges(pods)
    names = ("vllm_pending_requests", "vllm_running_requests")
    pending, running = (gauges[name].values() for name in names)
    return list(zip(pending, running, strict=True))


async def test_every_alert_can_be_evaluated(prometheus: Prometheus) -> None:
    """An expression that two samples of one series break, for one, breaks only then."""
    await until(
        lambda: all(rule["health"] != "unknown" for rule in prometheus.rules().values()), within=30
    )
    rules = prometheus.rules()
    assert set(rules) == {alert.name for alert in alerts()}
    assert {
        name: rule.get("lastError") for name, rule in rules.items() if rule["health"] != "ok"
    } == {}


async def test_the_adapter_finds_the_metrics_of_the_hpa(prometheus: Prometheus) -> None:
    rule = adapter_rule()
    assert set(hpa_metrics()) <= set(rule.offered(prometheus.named(rule.series)))
