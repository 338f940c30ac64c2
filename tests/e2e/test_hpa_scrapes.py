"""The stand-in for prometheus-adapter before a real Prometheus, whose pods come and go."""

import time
from pathlib import Path

from tests.e2e.hpa.adapter import Adapter
from tests.e2e.hpa.scrapes import Scrapes
from tests.rig.exposition import exposed
from tests.rig.service import until
from tests.rig.shipped import adapter_rule

MONITOR = {
    "metadata": {"namespace": "llm", "name": "tidegate"},
    "spec": {"podMetricsEndpoints": [{"port": "ops", "interval": "1s"}]},
}
PENDING = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/llm/pods/*/vllm_pending_requests"


def values(adapter: Adapter) -> dict[str, str]:
    _, body = adapter.answer(f"{PENDING}?labelSelector=a")
    return {item["describedObject"]["name"]: item["value"] for item in body.get("items", [])}


async def test_the_adapter_tells_of_the_pods_that_are_scraped(tmp_path: Path) -> None:
    page = "# TYPE vllm_pending_requests gauge\nvllm_pending_requests 3\n"
    with exposed(page) as url, Scrapes(MONITOR, tmp_path) as scrapes:
        address = url.removeprefix("http://")
        adapter = Adapter(adapter_rule(), scrapes, lambda *_: ["a", "b"])
        targets = [(address, {"namespace": "llm", "pod": name}) for name in ("a", "b", "other")]
        scrapes.follow(targets)
        await until(lambda: values(adapter) == {"a": "3000m", "b": "3000m"}, within=60)
        scrapes.follow(targets[1:])
        await until(lambda: values(adapter) == {"b": "3000m"}, within=60)
        now = time.time()
        seen = scrapes.over("sum(vllm_pending_requests)", now - 5, now)
        assert seen[-1][1] == 6.0  # those that nobody asked the adapter for, too
        assert scrapes.over("no_such_series", now - 5, now) == []
