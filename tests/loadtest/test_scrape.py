"""What a server's metrics page tells of a run."""

from collections.abc import Mapping
from typing import Any

import pytest

from loadtest.scrape import Scraper, parse

PAGE = """\
# HELP vllm:num_requests_running Requests in the batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 4
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:prefix_cache_queries_total 1e3
process_start_time_seconds 1.79599778151e+09
something_else 7
"""


def test_counts_are_added_up_and_shares_averaged() -> None:
    assert parse(PAGE) == {
        "vllm:num_requests_running": 7,
        "vllm:kv_cache_usage_perc": pytest.approx(0.3),
        "vllm:prefix_cache_queries_total": 1000,
        "process_start_time_seconds": 1.79599778151e9,
    }


def scraper(*pages: Mapping[str, float]) -> Scraper:
    return Scraper("", {}, [(100.0 + n, dict(page)) for n, page in enumerate(pages)])


def test_gauges_have_a_gap_where_a_scrape_failed() -> None:
    found = scraper({"vllm_pending_requests": 1.0}, {}, {"vllm_pending_requests": 3.0}).gauges(99.0)
    assert found.at == [1.0, 2.0, 3.0]
    assert found.series == {"vllm_pending_requests": [1.0, None, 3.0]}


def test_a_server_without_metrics_has_no_gauges() -> None:
    found = scraper({}, {}).gauges(0.0)
    assert (found.at, found.series) == ([], {})


@pytest.mark.parametrize(
    ("pages", "restarted"),
    [
        ([{"process_start_time_seconds": 5}, {}, {"process_start_time_seconds": 5}], False),
        ([{"process_start_time_seconds": 5}, {"process_start_time_seconds": 6}], True),
        ([{"vllm:generation_tokens_total": 5}, {"vllm:generation_tokens_total": 5}], False),
        ([{"vllm:generation_tokens_total": 5}, {"vllm:generation_tokens_total": 4}], True),
        ([{}, {}], False),
    ],
)
def test_a_restart_shows(pages: list[dict[str, Any]], restarted: bool) -> None:
    assert scraper(*pages).restarted() is restarted


def test_the_hit_rate_is_of_the_run_alone() -> None:
    first = {"vllm:prefix_cache_queries_total": 1000.0, "vllm:prefix_cache_hits_total": 900.0}
    last = {"vllm:prefix_cache_queries_total": 1100.0, "vllm:prefix_cache_hits_total": 925.0}
    assert scraper(first, last).hit_rate() == pytest.approx(0.25)
    assert scraper(first, first).hit_rate() is None
    assert scraper({}).hit_rate() is None
