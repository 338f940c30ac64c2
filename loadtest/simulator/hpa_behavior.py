"""How an autoscaler slows down what its metrics ask for: windows and policies.

The functions follow `horizontal.go` of kube-controller-manager. Times are seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

DOWNSCALE_STABILISATION_S = 300.0
LEGACY_FACTOR, LEGACY_LEAST = 2.0, 4.0


@dataclass(frozen=True)
class Policy:
    """So many pods, or so many per cent, may come or go within a period."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: float


@dataclass(frozen=True)
class Rules:
    """Of one direction."""

    window_s: float
    policies: tuple[Policy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"


UP = Rules(0.0, (Policy("Percent", 100, 15.0), Policy("Pods", 4, 15.0)))
DOWN = Rules(DOWNSCALE_STABILISATION_S, (Policy("Percent", 100, 15.0),))


@dataclass(frozen=True)
class Behavior:
    """What `spec.behavior` says, with the defaults for what it does not say."""

    up: Rules = UP
    down: Rules = DOWN


@dataclass(frozen=True)
class Bounds:
    """Least and most replicas, and the behaviour; None: the manifest has none at all."""

    least: int
    most: int
    behavior: Behavior | None = None


Event: TypeAlias = tuple[float, int]
"""When, and by how many replicas."""


@dataclass(frozen=True)
class History:
    """What the controller remembers: recommendations before they were stabilised, and events."""

    recommendations: tuple[Event, ...] = ()
    ups: tuple[Event, ...] = ()
    downs: tuple[Event, ...] = ()


def decide(
    bounds: Bounds, history: History, now: float, current: int, asked: int | None
) -> tuple[int, History]:
    """The replicas from now on, and what is remembered of it.

    Args:
        bounds: of the autoscaler.
        history: so far.
        now: of this sync.
        current: `spec.replicas`.
        asked: by the metrics; None: they could not be read.

    """
    history = _first(history, now, current)
    if current == 0 and bounds.least != 0:
        return 0, history  # scaling was switched off by hand
    if current > bounds.most or current < bounds.least:
        return _changed(bounds, history, now, current, min(max(current, bounds.least), bounds.most))
    if asked is None:
        return current, history
    stable = stabilised(bounds, history, now, current, asked)
    history = _remembered(bounds, history, now, asked)
    return _changed(bounds, history, now, current, limited(bounds, history, now, current, stable))


def stabilised(bounds: Bounds, history: History, now: float, current: int, asked: int) -> int:
    """Up to the least that the window of scaling up has seen, down to the most of the other."""
    if bounds.behavior is None:
        return max([asked, *_since(history.recommendations, now - DOWNSCALE_STABILISATION_S)])
    up = min([asked, *_after(history.recommendations, now - bounds.behavior.up.window_s)])
    down = max([asked, *_after(history.recommendations, now - bounds.behavior.down.window_s)])
    return min(max(current, up), down)


def limited(bounds: Bounds, history: History, now: float, current: int, wanted: int) -> int:
    """As far as the policies and the bounds allow."""
    if bounds.behavior is None:
        most = min(bounds.most, int(max(LEGACY_FACTOR * current, LEGACY_LEAST)))
        return bounds.least if wanted < bounds.least else min(wanted, most)
    if wanted > current:
        limit = up_limit(bounds.behavior.up, history, now, current)
        return min(wanted, bounds.most, max(limit, current))
    if wanted < current:
        limit = down_limit(bounds.behavior.down, history, now, current)
        return max(wanted, bounds.least, min(limit, current))
    return wanted


def up_limit(rules: Rules, history: History, now: float, current: int) -> int:
    """How many replicas there may be at most."""
    if rules.select == "Disabled":
        return current
    found = []
    for policy in rules.policies:
        start = _at_start(policy, history, now, current)
        grown = start * (1 + policy.value / 100)
        found.append(start + policy.value if policy.kind == "Pods" else math.ceil(grown))
    return min(found) if rules.select == "Min" else max(found)


def down_limit(rules: Rules, history: History, now: float, current: int) -> int:
    """How many replicas there have to be at least."""
    if rules.select == "Disabled":
        return current
    found = []
    for policy in rules.policies:
        start = _at_start(policy, history, now, current)
        shrunk = start * (1 - policy.value / 100)
        found.append(start - policy.value if policy.kind == "Pods" else int(shrunk))
    return max(found) if rules.select == "Min" else min(found)


def _at_start(policy: Policy, history: History, now: float, current: int) -> int:
    """Replicas when the policy's period began."""
    since = now - policy.period_s
    return current - sum(_after(history.ups, since)) + sum(_after(history.downs, since))


def _after(events: Sequence[Event], since: float) -> list[int]:
    return [change for at, change in events if at > since]


def _since(events: Sequence[Event], since: float) -> list[int]:
    return [change for at, change in events if at >= since]


def _first(history: History, now: float, current: int) -> History:
    """An autoscaler that is new takes what it finds for its first recommendation."""
    if history.recommendations:
        return history
    return replace(history, recommendations=((now, current),))


def _remembered(bounds: Bounds, history: History, now: float, asked: int) -> History:
    rules = bounds.behavior
    windows = (rules.up.window_s, rules.down.window_s) if rules else (DOWNSCALE_STABILISATION_S,)
    kept = tuple(event for event in history.recommendations if event[0] >= now - max(windows))
    return replace(history, recommendations=(*kept, (now, asked)))


def _changed(
    bounds: Bounds, history: History, now: float, current: int, replicas: int
) -> tuple[int, History]:
    """Events are kept as long as the longest period of their policies; none without policies."""
    if replicas == current or bounds.behavior is None:
        return replicas, history
    event = (now, abs(replicas - current))
    if replicas > current:
        ups = (*_recent(history.ups, bounds.behavior.up, now), event)
        return replicas, replace(history, ups=ups)
    downs = (*_recent(history.downs, bounds.behavior.down, now), event)
    return replicas, replace(history, downs=downs)


def _recent(events: tuple[Event, ...], rules: Rules, now: float) -> tuple[Event, ...]:
    longest = max((policy.period_s for policy in rules.policies), default=0.0)
    return tuple(event for event in events if event[0] >= now - longest)
