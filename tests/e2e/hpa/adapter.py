"""custom.metrics.k8s.io, served from Prometheus by a rule of prometheus-adapter.

The adapter itself cannot be had as a package. What this does in its place is what the rule says:
it asks for the pods that the autoscaler's selector finds, and gives back what Prometheus answers.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from tests.e2e.hpa.control_plane import AUTHORIZATION
from tests.e2e.hpa.tls import Certificate
from tests.rig import http_thread
from tests.rig.prometheus import Prometheus
from tests.rig.rule import Rule

GROUP = "custom.metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"
ROOT = f"/apis/{VERSION}"
_ASKED = re.compile(rf"{re.escape(ROOT)}/namespaces/([^/]+)/pods/([^/]+)/([^/]+)")

Answer: TypeAlias = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Question:
    """Which pods and which metric; `pod` is a name, or `*` for those of the selector."""

    namespace: str
    pod: str
    metric: str
    selector: str

    @classmethod
    def parse(cls, target: str) -> "Question | None":
        """From a request's path and query; None: it asks for something else."""
        parts = urlsplit(target)
        found = _ASKED.fullmatch(unquote(parts.path))
        if found is None:
            return None
        namespace, pod, metric = found.groups()
        selector = parse_qs(parts.query).get("labelSelector", [""])[0]
        return cls(namespace, pod, metric, selector)


class Adapter:
    """Answers; `names` gives the pods of a namespace and a selector."""

    def __init__(
        self, rule: Rule, scrapes: Prometheus, names: Callable[[str, str], Sequence[str]]
    ) -> None:
        self._rule, self._scrapes, self._names = rule, scrapes, names

    def answer(self, target: str) -> Answer:
        """Status and body of a GET."""
        question = Question.parse(target)
        if question is None and urlsplit(target).path != ROOT:
            return 404, _missing(f"no {target}")
        offered = self._rule.offered(self._scrapes.named(self._rule.series))
        if question is None:
            return 200, _resources(offered)
        series = offered.get(question.metric)
        names = [question.pod]
        if question.pod == "*":
            names = list(self._names(question.namespace, question.selector))
        if series is None or not names:
            return 404, _missing(f"no {question.metric} of {question.pod}")
        query = self._rule.pods(series, question.namespace, names)
        label = self._rule.labels["pod"]
        found = self._scrapes.query(query).items()
        return 200, _values(question, {dict(labels)[label]: value for labels, value in found})


def quantity(value: float) -> str:
    """In thousandths, what is less cut off, as prometheus-adapter does."""
    return f"{int(1000 * value)}m"


def _values(question: Question, values: Mapping[str, float]) -> Mapping[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {
            "describedObject": {
                "kind": "Pod",
                "namespace": question.namespace,
                "name": name,
                "apiVersion": "/v1",
            },
            "metricName": question.metric,
            "timestamp": now,
            "value": quantity(value),
            "selector": None,
        }
        for name, value in values.items()
    ]
    return {"kind": "MetricValueList", "apiVersion": VERSION, "metadata": {}, "items": items}


def _resources(offered: Mapping[str, str]) -> Mapping[str, Any]:
    kind = {"kind": "MetricValueList", "namespaced": True, "singularName": "", "verbs": ["get"]}
    resources = [{"name": f"pods/{name}", **kind} for name in sorted(offered)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": VERSION,
        "resources": resources,
    }


def _missing(message: str) -> Mapping[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "NotFound",
        "code": 404,
        "message": message,
    }


@contextmanager
def pod_names(url: str, tls: Certificate) -> Iterator[Callable[[str, str], Sequence[str]]]:
    """Asks the API server, as the adapter does."""
    with httpx.Client(
        base_url=url, verify=tls.trusted(), headers=AUTHORIZATION, trust_env=False
    ) as client:

        def names(namespace: str, selector: str) -> Sequence[str]:
            path = f"/api/v1/namespaces/{namespace}/pods"
            answer = client.get(path, params={"labelSelector": selector}).raise_for_status()
            return [pod["metadata"]["name"] for pod in answer.json()["items"]]

        yield names


@contextmanager
def served(adapter: Adapter, tls: Certificate) -> Iterator[int]:
    """Over HTTPS, as an aggregated API must be; the port."""

    def answer(path: str, _body: bytes) -> http_thread.Answer:
        status, found = adapter.answer(path)
        return status, "application/json", json.dumps(found).encode()

    def encrypt(server: ThreadingHTTPServer) -> None:
        # Each connection's own thread shakes hands, so that a slow one holds nobody up.
        server.socket = tls.served().wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )

    with http_thread.served(answer, protocol="HTTP/1.1", prepare=encrypt) as port:
        yield port


def registration(port: int) -> list[dict[str, Any]]:
    """What tells the API server to hand the group on to this machine's adapter."""
    where = {"name": "adapter", "namespace": "kube-system"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": where,
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": "v1beta1",
                "service": {**where, "port": port},
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]
