"""Windows and policies, as worked examples: what is asked for, sync by sync, and what comes."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.hpa_behavior import (
    DOWN,
    UP,
    Behavior,
    Bounds,
    History,
    Policy,
    Rules,
    decide,
    down_limit,
    up_limit,
)
from tests.loadtest.simulator.factory import unhurried

DEFAULTS = Behavior()
BY_TWO = Behavior(up=Rules(0.0, (Policy("Pods", 2, 180.0),)))


def run(bounds: Bounds, asked: Sequence[int | None], start: int, every: float = 15.0) -> list[int]:
    found, history = [start], History()
    for sync, replicas in enumerate(asked):
        now, history = decide(bounds, history, sync * every, found[-1], replicas)
        found.append(now)
    return found[1:]


@pytest.mark.parametrize(
    ("behavior", "start", "asked", "replicas", "why"),
    [
        (DEFAULTS, 1, [9, 9, 9], [5, 9, 9], "1 + 4 = 5 is more than 1 × 2; then 5 × 2 = 10"),
        (DEFAULTS, 8, [40, 40], [16, 20], "8 × 2 = 16 is more than 8 + 4; then the most"),
        (None, 1, [9, 9, 9], [4, 8, 9], "no behaviour: max(1 × 2, 4) = 4; 4 × 2 = 8"),
        (None, 8, [40, 40], [16, 20], "no behaviour: 8 × 2; then the most"),
        (BY_TWO, 1, [9] * 13, [3] * 12 + [5], "2 in 180 s: again when the sync is 180 s later"),
        (
            Behavior(up=Rules(30.0, UP.policies)),
            2,
            [6, 6, 6],
            [2, 2, 6],
            "2 was found at 0 s, which the window of 30 s still holds at 15 s and not at 30 s",
        ),
        (
            Behavior(up=Rules(0.0, (Policy("Percent", 50, 60.0),))),
            3,
            [9] * 6,
            [5, 5, 5, 5, 8, 8],
            "ceil(3 × 1.5) = 5 for 60 s, then ceil(5 × 1.5 = 7.5) = 8",
        ),
        (
            Behavior(up=Rules(0.0, UP.policies, "Min")),
            1,
            [9, 9, 9],
            [2, 4, 8],
            "the lesser of 100 % and 4: 1, then 2, then 4",
        ),
        (Behavior(up=Rules(0.0, UP.policies, "Disabled")), 1, [9, 9], [1, 1], "switched off"),
        (DEFAULTS, 5, [5, *[1] * 21], [5] * 20 + [1, 1], "5 counts for 300 s: gone at sync 20"),
        (None, 5, [5, *[1] * 21], [5] * 21 + [1], "no behaviour: 300 s, their end included"),
        (
            Behavior(down=Rules(0.0, (Policy("Pods", 1, 30.0),))),
            5,
            [1] * 5,
            [4, 4, 3, 3, 2],
            "1 in 30 s, so at every second sync",
        ),
        (
            Behavior(down=Rules(0.0, (Policy("Percent", 10, 15.0),))),
            10,
            [1, 1, 1],
            [9, 8, 7],
            "int(10 × 0.9) = 9, int(8.1) = 8, int(7.2) = 7",
        ),
        (
            Behavior(down=Rules(0.0, (Policy("Percent", 10, 15.0), Policy("Pods", 4, 15.0)))),
            10,
            [1, 1],
            [6, 2],
            "Max: the policy with more change, 4 pods",
        ),
        (
            Behavior(
                down=Rules(0.0, (Policy("Percent", 10, 15.0), Policy("Pods", 4, 15.0)), "Min")
            ),
            10,
            [1, 1],
            [9, 8],
            "Min: the policy with less change, 10 %",
        ),
        (DEFAULTS, 3, [None, 8, None], [3, 7, 7], "what cannot be read changes nothing"),
        (DEFAULTS, 30, [30], [20], "above the most: to the most at once"),
        (DEFAULTS, 0, [30], [0], "0 by hand: switched off"),
        (DEFAULTS, 2, [0], [2], "2 was found at the start and counts for 300 s"),
    ],
)
def test_sync_by_sync(
    behavior: Behavior | None, start: int, asked: list[int | None], replicas: list[int], why: str
) -> None:
    assert run(Bounds(1, 20, behavior), asked, start) == replicas, why


def test_the_least_is_kept() -> None:
    assert run(Bounds(2, 20, DEFAULTS), [0] * 22, 3)[-1] == 2
    assert run(Bounds(2, 20, None), [0] * 22, 3)[-1] == 2
    assert run(Bounds(4, 20, DEFAULTS), [9], 1) == [4]


def test_both_directions_count_in_a_period() -> None:
    history = History(ups=((100.0, 3),), downs=((90.0, 1), (10.0, 5)))
    rules = Rules(0.0, (Policy("Pods", 4, 60.0),))
    # 10 now, 3 came and 1 went within 60 s: the period began with 8.
    assert up_limit(rules, history, 110.0, 10) == 8 + 4
    assert down_limit(rules, history, 110.0, 10) == 8 - 4


def test_an_event_that_is_exactly_a_period_old_has_passed() -> None:
    rules = Rules(0.0, (Policy("Pods", 4, 60.0),))
    assert up_limit(rules, History(ups=((40.0, 4),)), 100.0, 8) == 12
    assert up_limit(rules, History(ups=((40.1, 4),)), 100.0, 8) == 8


@unhurried
@given(
    st.sampled_from([DEFAULTS, None, BY_TWO, Behavior(DOWN, UP)]),
    st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=40),
    st.integers(1, 20),
)
def test_it_stays_within_the_bounds_and_moves_towards_what_was_asked(
    behavior: Behavior | None, asked: list[int | None], start: int
) -> None:
    bounds = Bounds(1, 20, behavior)
    found = [start, *run(bounds, asked, start)]
    assert all(1 <= replicas <= 20 for replicas in found)
    lately = [start, *[1 if n is None else n for n in asked]]
    for sync, (before, after) in enumerate(pairwise(found)):
        if after > before:
            assert after <= max(lately[: sync + 2])
        if after < before:
            assert after >= min(lately[: sync + 2])
