"""What an expression names."""

import pytest

from deploy.check.promql import labels, made_labels, names, selectors


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("up", {"up"}),
        ("sum by (pod) (a_total) / on (pod) group_left (node) b", {"a_total", "b"}),
        ("sum(rate(vllm:x_total{route=~'a|b', pod!=\"c\"}[5m])) by (le, pod)", {"vllm:x_total"}),
        ("histogram_quantile(0.9, sum by (le) (rate(x_bucket[$__rate_interval])))", {"x_bucket"}),
        ("avg_over_time(x[1h:5m] offset 15m) > bool 1e-3 unless y # z", {"x", "y"}),
        ("label_replace(x, 'deployment', '$1', 'pod', '(.+)-[^-]+') and absent(y)", {"x", "y"}),
        ('max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)', set()),
        ('{__name__=~"^a$",pod!=""}', set()),
        ("count without (pod) (x) > 2 or vector(0)", {"x"}),
        ("time() - x > 30 and -y < +Inf", {"x", "y"}),
        ("x @ end() + topk(3, y)", {"x", "y"}),
    ],
)  # fmt: skip
def test_metrics(expression: str, found: set[str]) -> None:
    assert names(expression) == found


def test_matchers() -> None:
    (selector,) = selectors('rate(x{route="a", reason!~"b|c", }[5m])')
    assert selector.metric == "x"
    assert selector.matchers == (("route", "=", "a"), ("reason", "!~", "b|c"))
    (selector,) = selectors('{__name__=~"^(a|b)$",pod!=""}')
    assert (selector.metric, selector.matchers[0]) == ("", ("__name__", "=~", "^(a|b)$"))


def test_groupings_and_labels_that_are_made() -> None:
    assert labels("sum by (le, pod) (x) * on (a) group_left (b) y") == {"le", "pod", "a", "b"}
    assert labels('x{route="a"}') == set()
    assert "deployment" in made_labels('label_replace(x, "deployment", "$1", "pod", "(.+)")')
    assert made_labels('x{route="a"}') == set()
