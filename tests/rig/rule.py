"""A rule of prometheus-adapter, applied as it does: which series, which metric, which query."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEYS = frozenset({"seriesQuery", "resources", "name", "metricsQuery"})
"""What a rule may have; the adapter knows more."""
FILLED = ("Series", "LabelMatchers", "GroupBy")


@dataclass(frozen=True)
class Rule:
    """One entry of `rules.custom`, for metrics of pods.

    Attributes:
        series: `seriesQuery`, the selector that finds the series.
        labels: the label of each resource (`namespace`, `pod`).
        matches: what of a series' name makes the metric's.
        to: what it makes of it, in Go's notation (`${1}`).
        query: `metricsQuery`, with its `<<.…>>`.

    """

    series: str
    labels: Mapping[str, str]
    matches: str
    to: str
    query: str

    @classmethod
    def parse(cls, rule: Mapping[str, Any]) -> "Rule":
        """From the YAML of a rule that names its resources in `overrides`.

        Raises ValueError for what is not applied here, and for a query that a name is not filled
        into: it would be about other pods than those that are asked for.
        """
        query = rule["metricsQuery"]
        if unknown := set(rule) - KEYS:
            raise ValueError(f"not applied here: {', '.join(sorted(unknown))}")
        if lacking := [name for name in FILLED if f"<<.{name}>>" not in query]:
            raise ValueError(f"{query} has no {', '.join(lacking)}")
        overrides = rule["resources"]["overrides"]
        labels = {target["resource"]: label for label, target in overrides.items()}
        name = rule.get("name", {})
        matches, to = name.get("matches", "^(.*)$"), name.get("as", "")
        return cls(rule["seriesQuery"], labels, matches, to or "${1}", query)

    def metric(self, series: str) -> str | None:
        """The name that a series is offered under; None: the rule is not about it."""
        found = re.search(self.matches, series)
        return found and found.expand(re.sub(r"\$\{?(\w+)\}?", r"\\g<\1>", self.to))

    def offered(self, series: Iterable[str]) -> dict[str, str]:
        """The series behind each metric, of those that `series` found."""
        named = ((self.metric(name), name) for name in series)
        return {metric: name for metric, name in named if metric}

    def pods(self, series: str, namespace: str, pods: Sequence[str]) -> str:
        """PromQL for these pods, one value for each."""
        matchers = f'{self.labels["namespace"]}="{namespace}",'
        matchers += f'{self.labels["pod"]}=~"{"|".join(pods)}"'
        filled = dict(zip(FILLED, (series, matchers, self.labels["pod"]), strict=True))
        return re.sub(r"<<\s*\.(\w+)\s*>>", lambda found: filled[found[1]], self.query)
