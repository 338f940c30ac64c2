"""Everything that one run is made of; what the command line, a scenario and a result file hold."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.metrics import Slo
from loadtest.plan import Load, Shape, Spec, Tenant

MASKED = "***"
SECRET_HEADERS = ("authorization", "x-api-key", "api-key", "cookie", "proxy-authorization")


@dataclass(frozen=True)
class Target:
    """A server and how it is asked.

    Attributes:
        base_url: with or without `/v1` at its end.
        model: None: the first of `/v1/models`.
        endpoint: `completions` or `chat`.
        ignore_eos: exactly the planned number of tokens is asked for (a field of vLLM's).
        timeout_s: of one request, from its send to the end of its answer.
        extra: fields that are added to every body.
        probes: paths that are asked five times a second during the run.
        metrics_url: None: `/metrics` of the server; a server without it is measured all the same.

    """

    base_url: str = "http://127.0.0.1:8000"
    model: str | None = None
    endpoint: str = "completions"
    stream: bool = True
    ignore_eos: bool = True
    timeout_s: float = 600.0
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    metrics_url: str | None = None
    probes: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        """The base URL without `/v1`."""
        return self.base_url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: of the scenario; a part of the result's file name.
        warmup_s: requests that the plan sends before this are sent, but not measured; nothing
            waits for them to end.
        drain_s: answers that have not come so long after the last send are given up; None: all
            are waited for.
        workers: processes that send.
        keep_records: every record goes into the result with its gaps, not only its times.
        capacity: requests per second that a relative rate was a multiple of.

    """

    name: str = "run"
    target: Target = field(default_factory=Target)
    spec: Spec = field(default_factory=Spec)
    slo: Slo | None = None
    warmup_s: float = 5.0
    drain_s: float | None = None
    workers: int = 1
    keep_records: bool = False
    capacity: float | None = None


def dump(run: Run) -> dict[str, Any]:
    """As JSON types, keys masked."""
    found = dataclasses.asdict(run)
    if run.target.key is not None:
        found["target"]["key"] = MASKED
    headers = found["target"]["headers"]
    found["target"]["headers"] = {
        k: MASKED if k.lower() in SECRET_HEADERS else v for k, v in headers.items()
    }
    for tenant in found["spec"]["tenants"]:
        if tenant["key"] is not None:
            tenant["key"] = MASKED
    return found


def load(found: Mapping[str, Any]) -> Run:
    """What `dump` wrote."""
    spec = found["spec"]
    rates = tuple(spec["load"].get("rates") or ())
    return Run(
        **{
            **found,
            "target": Target(**{**found["target"], "probes": tuple(found["target"]["probes"])}),
            "slo": Slo(**found["slo"]) if found["slo"] else None,
            "spec": Spec(
                load=Load(**{**spec["load"], "rates": rates}),
                shape=Shape(**spec["shape"]),
                tenants=tuple(Tenant(**tenant) for tenant in spec["tenants"]),
                seed=spec["seed"],
            ),
        }
    )
