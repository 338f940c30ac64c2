"""Every metric and label that is named anywhere is one that the service has."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from deploy.check import promql
from deploy.check.findings import Finding, Findings
from deploy.check.objects import Object, dig, leaves
from deploy.check.scaling import scalers
from deploy.check.tree import Document, Tree

Series = Mapping[str, Mapping[str, frozenset[str]]]
"""Of each metric of a scrape its labels, and the values that each has."""

# A name of ours or of vLLM's, wherever it stands. Image names have a dash or a dot there.
_NAME: Final = re.compile(r"(?<![\w./-])(?:vllm[_:]|tidegate_)[a-z0-9_:]*[a-z0-9](?![\w-])")
# Metrics of others: Prometheus, cAdvisor, NVIDIA's exporter, the node's.
_FOREIGN: Final = re.compile(r"up|ALERTS|(?:container|node|kubelet|DCGM|prometheus|scrape)_\w+")
# Of kube-state-metrics those that are used, by its documentation.
_CLUSTER: Final = frozenset(
    (
        "kube_deployment_status_replicas_ready",
        "kube_horizontalpodautoscaler_info",
        "kube_horizontalpodautoscaler_spec_max_replicas",
        "kube_horizontalpodautoscaler_spec_target_metric",
        "kube_horizontalpodautoscaler_status_condition",
        "kube_horizontalpodautoscaler_status_desired_replicas",
        "kube_horizontalpodautoscaler_status_target_metric",
        "kube_pod_container_status_ready",
    )
)
# What Prometheus itself adds to a target of a PodMonitor.
_TARGET: Final = frozenset(("namespace", "pod", "container", "endpoint", "instance", "job", "node"))
# Of the metrics of others, and of alerts.
_FOREIGN_LABELS: Final = frozenset(
    (
        "deployment",
        "horizontalpodautoscaler",
        "metric_name",
        "scaletargetref_kind",
        "scaletargetref_name",
        "alertname",
        "severity",
        "condition",
        "status",
        "phase",
        "reason",
        "resource",
        "gpu",
        "modelName",
    )
)
_EXPRESSIONS: Final = re.compile(r"(?:^|[.\]])(?:expr|query|metricsQuery|seriesQuery|record)$")
# What prometheus-adapter fills into a query.
_TEMPLATE: Final = re.compile(r"<<\s*\.(\w+)\s*>>")
_TEMPLATES: Final = frozenset(
    ("Series", "LabelMatchers", "LabelValuesByName", "GroupBy", "GroupBySlice")
)
_LABEL_VALUES: Final = re.compile(r"label_values\((.*),\s*(\w+)\)")
_SHOWN_LABEL: Final = re.compile(r"\$labels\.(\w+)")
# Exported for every value, so that one that is not there is a mistake.
_CLOSED: Final = frozenset(("phase", "le"))


def series(text: str) -> Series:
    """Of a scrape."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    return {name: {k: frozenset(v) for k, v in labels.items()} for name, labels in found.items()}


def named(tree: Tree, scraped: Series) -> Findings:
    """Every name that looks like one of ours, in any file, comments included."""
    labels = {label for found in scraped.values() for label in found}
    for file, text in tree.texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            for name in _NAME.findall(line):
                if not _exists(name, scraped) and name not in labels:
                    yield Finding(f"{file}:{number}", "", "", f"the service has no metric {name}")


def _exists(name: str, scraped: Series) -> bool:
    """Whether it is a metric, or the name that its parts (_bucket, _sum, _count) share."""
    return name in scraped or f"{name}_bucket" in scraped


def expressions(tree: Tree, scraped: Series) -> Findings:
    """Metrics, matchers and groupings of every query, also those that do not look like ours."""
    ours = {label for found in scraped.values() for label in found}
    for document in tree.documents:
        rules = dict(_rules(document))
        for path, text in leaves(document.content):
            if isinstance(text, str) and _EXPRESSIONS.search(path):
                for problem in _problems(_expression(path, text), scraped, ours, set(rules)):
                    yield Finding(document.name, _subject(document), path, problem)
            for label in _SHOWN_LABEL.findall(str(text)):
                if label not in ours | _TARGET | _FOREIGN_LABELS:
                    yield Finding(document.name, _subject(document), path, f"no label {label}")


def _expression(path: str, text: str) -> str:
    """The PromQL in a value; a dashboard's variables ask in a language of Grafana's."""
    if not path.startswith("templating."):
        return text
    asked = _LABEL_VALUES.fullmatch(text)
    return f"count by ({asked[2]}) ({asked[1]})" if asked else ""


def _subject(document: Document) -> str:
    name = dig(document.content, "metadata.name") if isinstance(document.content, dict) else None
    return f"{dig(document.content, 'kind')}/{name}" if name else ""


def _rules(document: Document) -> Iterator[tuple[str, Any]]:
    """The recording rules of a document: names that its queries may use."""
    for path, value in leaves(document.content):
        if path.endswith(".record"):
            yield str(value), path


def _problems(text: str, scraped: Series, ours: set[str], recorded: set[str]) -> Iterator[str]:
    for selector in promql.selectors(text):
        metric = selector.metric
        if metric in scraped:
            yield from _unmatched(selector, scraped[metric])
        elif metric in _CLUSTER or _FOREIGN.fullmatch(metric):
            for label, _, _ in selector.matchers:
                if label not in _TARGET | _FOREIGN_LABELS:
                    yield f"{metric} has no label {label}"
        elif metric and metric not in recorded:
            yield f"no metric {metric} in a scrape of the service, or known of others"
    known = ours | _TARGET | _FOREIGN_LABELS | promql.made_labels(text)
    for label in sorted(promql.labels(text) - known):
        yield f"no metric of the service has a label {label}"


def _unmatched(selector: promql.Selector, labels: Mapping[str, frozenset[str]]) -> Iterator[str]:
    for label, operator, value in selector.matchers:
        if label not in labels and label not in _TARGET:
            yield f"{selector.metric} has no label {label}"
        elif label in _CLOSED and operator == "=" and value not in labels[label]:
            yield f"{selector.metric} has no {label} {value}"


def adapter(tree: Tree, scraped: Series) -> Findings:
    """Every metric of an HPA is one that the adapter's rules find in a scrape."""
    patterns = [found for document in tree.documents for found in _patterns(document)]
    for file, pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in scraped):
            yield Finding(file, "", "rules.custom", f"{pattern} is no metric of the service")
    for overlay in tree.overlays:
        for scaler in scalers(overlay):
            for name, key, _ in scaler.targets:
                if name not in scraped:
                    yield overlay.finding(scaler.found, key, f"the service has no metric {name}")
                elif scaler.adapted and not any(re.fullmatch(p, name) for _, p in patterns):
                    problem = f"no rule of the adapter makes a metric {name}"
                    yield overlay.finding(scaler.found, key, problem)


def templates(tree: Tree, _: Series) -> Findings:
    """The adapter fills in all that its rules leave to it."""
    for document in tree.documents:
        for rule in dig(document.content, "rules.custom", []):
            for name in _TEMPLATE.findall(rule.get("metricsQuery", "")):
                if name not in _TEMPLATES:
                    yield Finding(document.name, "", "rules.custom.metricsQuery", f"no <<.{name}>>")


def _patterns(document: Document) -> Iterator[tuple[str, str]]:
    """What the adapter's rules in a file look for: the file, and a pattern of names each."""
    rules: list[Object] = dig(document.content, "rules.custom", [])
    for rule in rules:
        for selector in promql.selectors(rule.get("seriesQuery", "")):
            for label, _, value in selector.matchers:
                if label == "__name__":
                    yield from ((document.name, p) for p in value.strip("^$()").split("|"))
