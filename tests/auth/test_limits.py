"""Limits per key; the clock is the test's own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.auth.limits import LIMIT_HEADERS, Limiter, Usage, decide, duration
from app.errors import InvalidValue, QueueFull, QueueTimeout, RateLimited, TidegateError
from tests.rig.clock import Clock
from tests.rig.keys import OTHER, key


@pytest.mark.parametrize(
    ("limits", "usage", "tokens", "names", "retry_after_s"),
    [
        ({}, Usage(1000, 1e6, 1e6), 10**9, None, None),
        ({"max_concurrent": 2}, Usage(running=1), 1, None, None),
        ({"max_concurrent": 2}, Usage(running=2), 1, "max_concurrent", 1.0),
        ({"requests_per_minute": 6}, Usage(requests=5.0), 0, None, None),
        ({"requests_per_minute": 6}, Usage(requests=5.5), 0, "requests_per_minute", 5.0),
        ({"requests_per_minute": 6}, Usage(requests=6.0), 9, "requests_per_minute", 10.0),
        ({"tokens_per_minute": 60}, Usage(tokens=50), 10, None, None),
        ({"tokens_per_minute": 60}, Usage(tokens=50), 11, "tokens_per_minute", 1.0),
        # Larger than the bucket: goes when the bucket is full.
        ({"tokens_per_minute": 60}, Usage(), 1000, None, None),
        ({"tokens_per_minute": 60}, Usage(tokens=7), 1000, "tokens_per_minute", 7.0),
        # In debt: nothing that the engine would have to work for goes, not even one token.
        ({"tokens_per_minute": 60}, Usage(tokens=90), 1, "tokens_per_minute", 31.0),
        ({"tokens_per_minute": 60}, Usage(tokens=90), 0, None, None),
        # Of several, the one that takes longest; a free slot may come any moment.
        (
            {"requests_per_minute": 60, "tokens_per_minute": 60},
            Usage(requests=60, tokens=60),
            9,
            "tokens_per_minute",
            9.0,
        ),
        (
            {"requests_per_minute": 1, "tokens_per_minute": 60},
            Usage(requests=1, tokens=60),
            9,
            "requests_per_minute",
            60.0,
        ),
        (
            {"max_concurrent": 1, "requests_per_minute": 1},
            Usage(running=1, requests=1),
            9,
            "max_concurrent",
            1.0,
        ),
    ],
)
def test_what_is_refused_for_which_limit_and_for_how_long(
    limits: dict[str, int],
    usage: Usage,
    tokens: int,
    names: str | None,
    retry_after_s: float | None,
) -> None:
    refusal = decide(key(**limits), usage, tokens)
    if names is None:
        assert refusal is None
        return
    assert refusal is not None
    assert f"({names})" in refusal.message
    assert refusal.retry_after_s == pytest.approx(retry_after_s)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0000001, "1ms"),
        (0.02, "20ms"),
        (0.9991, "1s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (86.4, "1m26.4s"),
        (360, "6m0s"),
        (3661.001, "1h1m1.001s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@dataclass
class Used:
    prompt_tokens: int = 0
    output_tokens: int = 0


class Desk:
    """A limiter on a clock of its own, and the requests of one key."""

    def __init__(self, **limits: int) -> None:
        self.clock = Clock(1000.0)
        self.limiter = Limiter(self.clock)
        self.key = key(**limits)

    def one(self, tokens: int = 0, used: int | None = None) -> None:
        """A whole request; what it used is what it reserved, if nothing else is said."""
        with self.limiter.request(self.key, tokens) as charge:
            charge.permit = Used(tokens if used is None else used)

    @contextmanager
    def refused(self, *fields: str) -> Iterator[None]:
        before = self.limiter.headers(self.key)
        with pytest.raises(RateLimited) as raised:
            yield
        assert all(field in raised.value.message for field in fields)
        assert self.limiter.headers(self.key) == before

    def decide(self, tokens: int) -> RateLimited | None:
        try:
            with self.limiter.request(self.key, tokens):
                raise QueueTimeout(0)
        except RateLimited as refused:
            return refused
        except QueueTimeout:
            return None

    def left(self, what: str) -> int:
        return int(self.limiter.headers(self.key)[f"x-ratelimit-remaining-{what}"])


def test_requests_flow_back_one_by_one() -> None:
    desk = Desk(requests_per_minute=3)
    for left in (2, 1, 0):
        desk.one()
        assert desk.left("requests") == left
    with desk.refused("requests_per_minute", "20s"):
        desk.one()
    desk.clock.now += 20
    desk.one()
    with desk.refused():
        desk.one()
    desk.clock.now += 3600
    assert desk.left("requests") == 3


def test_tokens_are_settled_with_what_was_used() -> None:
    desk = Desk(tokens_per_minute=100)
    with desk.limiter.request(desk.key, 80) as charge:
        assert desk.left("tokens") == 20
        charge.permit = Used(10, 5)
    assert desk.left("tokens") == 85
    desk.one(tokens=5, used=185)
    assert desk.left("tokens") == 0
    with desk.refused("tokens_per_minute", "100", "1m0.6s"):
        desk.one(tokens=1)
    desk.clock.now += 60.6
    desk.one(tokens=1)


def test_a_reservation_that_flowed_back_is_not_given_back_again() -> None:
    desk = Desk(tokens_per_minute=100)
    with desk.limiter.request(desk.key, 100) as charge:
        desk.clock.now += 600
        charge.permit = Used(1)
    assert desk.left("tokens") == 100
    with desk.limiter.request(desk.key, 100) as charge:
        desk.clock.now += 600
        charge.permit = Used(150)
    assert desk.left("tokens") == 50


def test_a_request_larger_than_the_bucket_takes_all_of_it() -> None:
    desk = Desk(tokens_per_minute=100)
    with desk.limiter.request(desk.key, 10**6):
        assert desk.left("tokens") == 0
        with desk.refused():
            desk.one(tokens=1)
    assert desk.left("tokens") == 100


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (QueueFull(429, 1.0), (3, 100)),
        (QueueTimeout(30.0), (3, 100)),
        (InvalidValue("no"), (2, 100)),
    ],
)
def test_who_is_told_to_come_back_has_taken_nothing(
    error: TidegateError, left: tuple[int, int]
) -> None:
    desk = Desk(requests_per_minute=3, tokens_per_minute=100, max_concurrent=1)
    with pytest.raises(type(error)), desk.limiter.request(desk.key, 50):
        raise error
    assert (desk.left("requests"), desk.left("tokens")) == left
    desk.one(100)


def test_so_many_at_once() -> None:
    desk = Desk(max_concurrent=2)
    with ExitStack() as stack:
        first = stack.enter_context(desk.limiter.request(desk.key, 1))
        stack.enter_context(desk.limiter.request(desk.key, 1))
        with desk.refused("max_concurrent", "2"):
            desk.one()
        assert first.tokens == 0
    desk.one()


def test_keys_do_not_share_limits() -> None:
    desk = Desk(requests_per_minute=1)
    desk.one()
    desk.key = key(name="bob", sha256=OTHER, requests_per_minute=1)
    desk.one()


def test_what_was_taken_outlives_a_change_of_the_limits() -> None:
    desk = Desk(requests_per_minute=10)
    for _ in range(8):
        desk.one()
    desk.key = key(requests_per_minute=20)
    assert desk.left("requests") == 12
    desk.key = key(requests_per_minute=4)
    with desk.refused("4 requests per minute", "1m15s"):
        desk.one()


def test_a_key_without_limits_has_no_headers_and_one_with_all_has_six() -> None:
    assert Desk().limiter.headers(key()) == {}
    assert Desk(max_concurrent=3).limiter.headers(key(max_concurrent=3)) == {}
    desk = Desk(requests_per_minute=60, tokens_per_minute=6000)
    desk.one(tokens=601)
    assert desk.limiter.headers(desk.key) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5399",
        "x-ratelimit-reset-tokens": "6.01s",
    }
    assert set(desk.limiter.headers(desk.key)) == set(LIMIT_HEADERS)


def test_without_a_key_nothing_is_counted() -> None:
    with Limiter().request(None, 10**9) as charge:
        charge.permit = Used(1)


Steps = st.lists(
    st.tuples(st.floats(0, 30), st.integers(0, 200), st.floats(0, 2)), min_size=1, max_size=40
)


@settings(deadline=None)
@given(limit=st.integers(1, 100), steps=Steps)
def test_no_stretch_of_time_has_more_than_a_bucket_and_what_flowed_back(
    limit: int, steps: list[tuple[float, int, float]]
) -> None:
    """Whatever comes when: of requests and of tokens, when what is used is what was reserved."""
    desk = Desk(requests_per_minute=limit, tokens_per_minute=limit)
    taken: list[tuple[float, int]] = []
    for pause_s, tokens, _ in steps:
        desk.clock.now += pause_s
        refusal = desk.decide(tokens)
        # When it was told that it would fit, it fits.
        desk.clock.now += refusal.retry_after_s or 0.0 if refusal else 0.0
        desk.one(tokens, used=min(tokens, limit))
        taken.append((desk.clock.now, min(tokens, limit)))
        assert 0 <= desk.left("tokens") <= limit
        assert 0 <= desk.left("requests") <= limit
    for first, (start, _) in enumerate(taken):
        for last in range(first, len(taken)):
            most = limit * (1 + (taken[last][0] - start) / 60) + 1e-3
            assert last - first + 1 <= most
            assert sum(tokens for _, tokens in taken[first : last + 1]) <= most


@settings(deadline=None)
@given(limit=st.integers(1, 100), steps=Steps)
def test_in_the_long_run_as_much_is_used_as_flows_back(
    limit: int, steps: list[tuple[float, int, float]]
) -> None:
    """Also when requests use more or less than they reserved."""
    desk = Desk(tokens_per_minute=limit)
    start, used, largest = desk.clock.now, 0, 0
    for pause_s, tokens, factor in steps:
        desk.clock.now += pause_s
        actual = int(tokens * factor)
        try:
            desk.one(tokens, used=actual)
        except RateLimited:
            continue
        used += actual
        largest = max(largest, actual)
        # One request may overdraw; nothing goes after it until that has flowed back.
        assert used <= limit * (1 + (desk.clock.now - start) / 60) + largest + 1e-3
