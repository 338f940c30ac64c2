"""What is to be sent and when: drawn ahead, the same for the same seed."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadtest import arrivals, lengths, traces
from loadtest.errors import UsageError

USERS_FROM = 10**8
"""Indices of the requests of a tenant's own users; another such step for each tenant."""
CLOSED_LOOP_REQUESTS = 20_000
"""Drawn for a closed loop that only time ends; it starts over when they are used up."""


@dataclass(frozen=True)
class Tenant:
    """One of several customers: a share of the requests, its key and its priority.

    Attributes:
        users: instead of a share, so many users that each send their next request when the last
            one has ended, beside the load of the others.

    """

    name: str
    share: float = 1.0
    key: str | None = None
    priority: int | None = None
    users: int = 0


@dataclass(frozen=True)
class Planned:
    """One request: seconds from the start, tokens, whose it is, and the seed of its prompt."""

    index: int
    at: float
    prompt_tokens: int
    output_tokens: int
    tenant: str
    prompt_seed: int


@dataclass(frozen=True)
class Load:
    """How requests arrive.

    Attributes:
        kind: constant, poisson, gamma, bursts, steps, ramp, trace or closed.
        concurrency: of a closed loop, which has no times of its own and goes on for
            `duration_s`, or until `requests` are sent.

    """

    kind: str = "poisson"
    rate: float = 1.0
    cv: float = 1.0
    duration_s: float = 60.0
    on_s: float = 10.0
    off_s: float = 10.0
    rates: tuple[float, ...] = ()
    step_s: float = 30.0
    last_rate: float = 1.0
    trace: str | None = None
    trace_kind: str = "azure"
    time_scale: float = 1.0
    length_scale: float = 1.0
    concurrency: int | None = None
    requests: int | None = None


@dataclass(frozen=True)
class Shape:
    """How long prompts and outputs are, in tokens; `trace` takes them from the trace."""

    prompt: str = "fixed:128"
    output: str = "fixed:64"


@dataclass(frozen=True)
class Spec:
    """All that a plan is drawn from."""

    load: Load = Load()
    shape: Shape = Shape()
    tenants: tuple[Tenant, ...] = (Tenant("default"),)
    seed: int = 0


def draw(spec: Spec) -> list[Planned]:
    """The plan of a spec.

    Raises:
        UsageError: no plan can be drawn from it; one line.

    """
    found = _arrivals(spec)
    count = len(found)
    if count == 0:
        raise UsageError("the plan has no request: raise the rate or the duration")
    prompts = _lengths(spec, spec.shape.prompt, [a.prompt_tokens for a in found], "prompt")
    outputs = _lengths(spec, spec.shape.output, [a.output_tokens for a in found], "output")
    names = _tenants(spec, count)
    seeds = _dice(spec, "prompts").integers(0, 2**31, count)
    return [
        Planned(i, float(a.at), int(prompts[i]), int(outputs[i]), names[i], int(seeds[i]))
        for i, a in enumerate(found)
    ]


def draw_users(spec: Spec) -> dict[str, list[Planned]]:
    """What the users of each tenant that has its own send in turn, over and over."""
    drawn = {}
    for k, tenant in enumerate(spec.tenants):
        if tenant.users:
            load = replace(spec.load, kind="closed", concurrency=tenant.users, requests=1_000)
            own = draw(Spec(load, spec.shape, (replace(tenant, users=0),), spec.seed + k + 1))
            drawn[tenant.name] = [replace(p, index=p.index + (k + 1) * USERS_FROM) for p in own]
    return drawn


def _dice(spec: Spec, purpose: str) -> np.random.Generator:
    """A stream of its own for each purpose: a change of lengths leaves the arrivals alone."""
    return np.random.default_rng([spec.seed, zlib.crc32(purpose.encode())])


def _arrivals(spec: Spec) -> list[traces.Arrival]:
    load = spec.load
    if load.kind == "trace":
        return _replay(spec)
    if load.kind == "closed":
        return _sized(spec, [0.0] * _count(load))
    times = _times(load, _dice(spec, "arrivals"))
    return _sized(spec, [float(at) for at in times[: load.requests]])


def _sized(spec: Spec, times: Sequence[float]) -> list[traces.Arrival]:
    """Arrivals at these times, with lengths drawn from those of a trace where there is one."""
    if spec.load.trace is None:
        return [traces.Arrival(at, None, None) for at in times]
    dice = _dice(spec, "lengths")
    found = traces.read(Path(spec.load.trace), spec.load.trace_kind, dice)
    chosen = dice.integers(0, len(found), len(times))
    return [
        traces.Arrival(at, found[i].prompt_tokens, found[i].output_tokens)
        for at, i in zip(times, chosen, strict=True)
    ]


def _count(load: Load) -> int:
    if load.concurrency is None or load.concurrency < 1:
        raise UsageError("a closed loop needs --concurrency of at least 1")
    if load.requests is not None and load.requests < 1:
        raise UsageError("--requests must be at least 1")
    if load.requests is None and not load.duration_s > 0:
        raise UsageError("a closed loop needs --requests or --duration")
    return load.requests or max(CLOSED_LOOP_REQUESTS, 100 * load.concurrency)


def _times(load: Load, dice: np.random.Generator) -> arrivals.Times:
    makers = {
        "constant": lambda: arrivals.constant(load.rate, load.duration_s),
        "poisson": lambda: arrivals.poisson(load.rate, load.duration_s, dice),
        "gamma": lambda: arrivals.gamma(load.rate, load.cv, load.duration_s, dice),
        "bursts": lambda: arrivals.bursts(load.rate, load.on_s, load.off_s, load.duration_s, dice),
        "steps": lambda: arrivals.steps(load.rates, load.step_s, dice),
        "ramp": lambda: arrivals.ramp(load.rate, load.last_rate, load.duration_s, dice),
    }
    if load.kind not in makers:
        raise UsageError(f"unknown load {load.kind!r}: one of {', '.join(makers)}, trace, closed")
    if load.duration_s <= 0:
        raise UsageError(f"a duration must be above 0, not {load.duration_s:g}")
    return makers[load.kind]()


def _replay(spec: Spec) -> list[traces.Arrival]:
    """A trace, stretched by the time scale (which keeps its burstiness) and cut to the duration."""
    load = spec.load
    if load.trace is None:
        raise UsageError("a trace load needs --trace FILE")
    if load.time_scale <= 0 or load.length_scale <= 0:
        raise UsageError("--time-scale and --length-scale must be above 0")
    found = traces.read(Path(load.trace), load.trace_kind, _dice(spec, "arrivals"))
    kept = [
        traces.Arrival(a.at * load.time_scale, a.prompt_tokens, a.output_tokens, a.tenant)
        for a in found
        if a.at * load.time_scale < load.duration_s
    ]
    return kept[: load.requests]


def _lengths(
    spec: Spec, shape: str, from_trace: Sequence[int | None], purpose: str
) -> Sequence[int] | lengths.Lengths:
    if shape != "trace":
        return lengths.draw(shape, len(from_trace), _dice(spec, purpose))
    if any(length is None for length in from_trace):
        raise UsageError(f"the load has no {purpose} lengths: give them with --{purpose}-tokens")
    return [max(1, round((n or 0) * spec.load.length_scale)) for n in from_trace]


def _tenants(spec: Spec, count: int) -> list[str]:
    sharing = [tenant for tenant in spec.tenants if not tenant.users]
    shares = np.array([tenant.share for tenant in sharing], dtype=float)
    if (shares < 0).any() or shares.sum() <= 0:
        raise UsageError("the tenants' shares must not be negative, and not all 0")
    chosen = _dice(spec, "tenants").choice(len(shares), count, p=shares / shares.sum())
    return [sharing[i].name for i in chosen]
