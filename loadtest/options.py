"""The options of a run, on the command line or in a scenario, and the `Run` that they make.

A scenario is a YAML file of the same options by their long names, with underscores for dashes. What
the command line says takes the place of what it says.
"""

import argparse
import dataclasses
import json
import math
import re
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml

from loadtest import plan, servers
from loadtest.errors import UsageError
from loadtest.metrics import SLO_METRICS, Slo
from loadtest.plan import Load, Shape, Spec, Tenant
from loadtest.settings import Run, Target
from loadtest.traces import READERS

RESULTS = Path("loadtest/results")
CAPACITY_CONCURRENCY = 64
CAPACITY_DURATION_S = 20.0
CAPACITY_SEED = 1_000_000
"""Added to the seed: a prompt that was sent to find the capacity is not sent again."""

RATES = ("rate", "last_rate", "rates")
USES: Mapping[str, frozenset[str]] = {
    "constant": frozenset({"rate", "duration_s"}),
    "poisson": frozenset({"rate", "duration_s"}),
    "gamma": frozenset({"rate", "cv", "duration_s"}),
    "bursts": frozenset({"rate", "on_s", "off_s", "duration_s"}),
    "steps": frozenset({"rates", "step_s"}),
    "ramp": frozenset({"rate", "last_rate", "duration_s"}),
    "trace": frozenset({"time_scale", "duration_s"}),
    "closed": frozenset({"concurrency", "duration_s"}),
}
"""The kinds of load, and the settings of `Load` that each of them alone has."""
_LENGTHS = frozenset({"trace", "trace_kind", "length_scale"})
"""Those that any kind may have: the lengths of a trace without its arrivals."""
_SHAPING = frozenset().union(*USES.values())


class Parser(ArgumentParser):
    """One whose errors are UsageErrors, and whose options are not abbreviated."""

    def __init__(self, command: str, about: str) -> None:
        prog = f"python -m loadtest {command}"
        super().__init__(prog, f"{prog} [OPTIONS]", about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


@dataclass(frozen=True)
class Rate:
    """Requests per second, or a multiple of the server's capacity."""

    value: float
    relative: bool = False

    def at(self, capacity: float | None) -> float:
        """Requests per second."""
        if not self.relative:
            return self.value
        if capacity is None:
            raise UsageError(f"a rate of {self.value:g}x needs a capacity")
        return self.value * capacity


# -- what the options are


def add_arguments(parser: ArgumentParser) -> None:
    """The options that `run`, `compare` and `search` have in common; see `settled`."""
    parser.add_argument("--scenario", action=_Scenario, metavar="FILE", help="options as YAML")
    _add_target(group(parser, "the server"))
    _add_load(group(parser, "when requests are sent"))
    _add_requests(group(parser, "what is sent"))
    _add_run(group(parser, "the run"))
    _tell_defaults(parser)


def group(parser: ArgumentParser, title: str) -> Any:
    """A group of options that a scenario may hold: none has a default, so that one may give way."""
    return parser.add_argument_group(title, argument_default=argparse.SUPPRESS)


def _add_target(group: Any) -> None:
    several = {"nargs": "+", "action": "extend", "dest": "sources"}
    group.add_argument(
        "--base-url",
        type=_url,
        metavar="URL",
        help=f"with or without /v1; default: {Target.base_url}",
        **several,
    )
    group.add_argument(
        "--serve",
        type=servers.find,
        metavar="COMMAND",
        help=f"start one: {', '.join(servers.named())}, or a command with {{port}} and {{model}}",
        **several,
    )
    group.add_argument("--serve-model", type=Path, metavar="DIR", help="{model}; else a tiny one")
    group.add_argument("--model", help="default: the first of /v1/models")
    group.add_argument("--endpoint", choices=("completions", "chat"))
    group.add_argument("--stream", action=BooleanOptionalAction)
    group.add_argument(
        "--ignore-eos", action=BooleanOptionalAction, help="exactly the tokens asked for; vLLM's"
    )
    group.add_argument("--timeout", type=positive, dest="timeout_s", metavar="S")
    group.add_argument("--key", help="of the API")
    group.add_argument(
        "--header", nargs="+", action="extend", type=_header, dest="headers", metavar="N=V"
    )
    group.add_argument("--extra", type=_json, metavar="JSON", help="added to every body")
    group.add_argument(
        "--probe",
        nargs="+",
        action="extend",
        dest="probes",
        metavar="PATH",
        help="asked five times a second during the run: /readyz",
    )
    group.add_argument("--metrics-url", type=_http, metavar="URL", help="default: /metrics there")


def _add_load(group: Any) -> None:
    group.add_argument("--load", choices=tuple(USES), dest="kind")
    group.add_argument("--rate", type=rate, metavar="R", help="requests/s; 2x: twice the capacity")
    group.add_argument("--cv", type=amount, help="of gamma gaps: 0 is constant, 1 Poisson")
    group.add_argument("--on", type=positive, dest="on_s", metavar="S", help="of a burst")
    group.add_argument("--off", type=amount, dest="off_s", metavar="S", help="between bursts")
    group.add_argument("--rates", nargs="+", action="extend", type=rate, metavar="R", help="steps")
    group.add_argument("--step", type=positive, dest="step_s", metavar="S", help="of each rate")
    group.add_argument("--last-rate", type=rate, metavar="R", help="where a ramp from --rate ends")
    group.add_argument(
        "--duration", type=positive, dest="duration_s", metavar="S", help="a trace is cut there"
    )
    group.add_argument("--requests", type=count, metavar="N", help="no more than these")
    group.add_argument("--concurrency", type=count, metavar="N", help="a closed loop of N users")
    group.add_argument("--trace", metavar="FILE")
    group.add_argument("--trace-kind", choices=tuple(READERS))
    group.add_argument("--time-scale", type=positive, metavar="X", help="2: half as fast")
    group.add_argument("--length-scale", type=positive, metavar="X", help="of a trace's lengths")
    group.add_argument("--capacity", type=positive, metavar="R", help="default: measured first")
    group.add_argument(
        "--capacity-concurrency", type=count, metavar="N", help=f"default: {CAPACITY_CONCURRENCY}"
    )
    group.add_argument(
        "--capacity-duration", type=positive, metavar="S", help=f"default: {CAPACITY_DURATION_S:g}"
    )


def _add_requests(group: Any) -> None:
    lengths = "N, uniform:A:B, exponential:MEAN or trace"
    group.add_argument("--prompt-tokens", type=_lengths, dest="prompt", metavar="N", help=lengths)
    group.add_argument("--output-tokens", type=_lengths, dest="output", metavar="N", help=lengths)
    group.add_argument(
        "--tenant",
        nargs="+",
        action="extend",
        type=_tenant,
        dest="tenants",
        metavar="F=V,…",
        help="name=…,share=…,key=…,priority=…; users=N: a closed loop beside the others",
    )
    group.add_argument("--seed", type=_natural)


def _add_run(group: Any) -> None:
    group.add_argument("--name", type=_name, help="default: the scenario's")
    group.add_argument(
        "--slo", nargs="+", action="extend", type=_slo, metavar="M=S", help="ttft=1 tpot=0.05 e2e=…"
    )
    group.add_argument("--warmup", type=amount, dest="warmup_s", metavar="S", help="not measured")
    group.add_argument(
        "--drain", type=amount, dest="drain_s", metavar="S", help="give up so long after the end"
    )
    group.add_argument("--workers", type=count, metavar="N", help="processes that send")
    group.add_argument(
        "--records",
        action=BooleanOptionalAction,
        dest="keep_records",
        help="keep every gap of every request",
    )
    group.add_argument("--out", type=Path, metavar="DIR", help=f"default: {RESULTS}")


def _tell_defaults(parser: ArgumentParser) -> None:
    """They are those of the settings: options have none of their own."""
    parts = (Run, Target, Spec, Load, Shape)
    defaults = {field.name: field.default for part in parts for field in dataclasses.fields(part)}
    for action in parser._actions:
        default = defaults.get(action.dest)
        if isinstance(default, str | int | float):
            shown = f"default: {default}"
            action.help = f"{action.help}; {shown}" if action.help else shown


# -- how each is read


def amount(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not (value >= 0 and math.isfinite(value)):
        raise ArgumentTypeError(f"must be a number of at least 0, not {text}")
    return value


def positive(text: str) -> float:
    """A finite number above 0."""
    value = amount(text)
    if value == 0:
        raise ArgumentTypeError(f"must be above 0, not {text}")
    return value


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = _natural(text)
    if value == 0:
        raise ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def add_counts(parser: ArgumentParser, defaults: object, helps: Mapping[str, str]) -> None:
    """Options that are counts, by their names; the help ends with the attribute in `defaults`."""
    for name, words in helps.items():
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(
            f"--{name}", type=count, metavar="N", help=f"{words}; default: {default}"
        )


def rate(text: str) -> Rate:
    """`20`, or `2x` for twice the capacity; 0 is a rate only among others."""
    try:
        return Rate(amount(text.removesuffix("x")), relative=text.endswith("x"))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no rate: use 20, or 2x for capacity") from None


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"must be a whole number of at least 0, not {text}")
    return int(text)


def _url(text: str) -> servers.Url:
    return servers.Url(_http(text))


def _http(text: str) -> str:
    if not re.match(r"https?://[^/]", text):
        raise ArgumentTypeError(f"{text!r} must begin with http:// or https://")
    return text


def _header(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"must be a JSON object, not {text}")
    return found


def _lengths(text: str) -> str:
    return f"fixed:{text}" if text.isdecimal() else text


def _name(text: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", text):
        raise ArgumentTypeError(f"{text!r}: use letters, digits, dots and dashes")
    return text


def _slo(text: str) -> tuple[str, float]:
    name, _, bound = text.partition("=")
    if name not in SLO_METRICS:
        raise ArgumentTypeError(f"{text!r} is not METRIC=SECONDS of {', '.join(SLO_METRICS)}")
    try:
        return name, positive(bound)
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: {bound!r} is no number of seconds") from None


_TENANT: Mapping[str, Callable[[str], Any]] = {
    "name": _name,
    "share": amount,
    "key": str,
    "priority": int,
    "users": count,
}


def _tenant(text: str) -> Tenant:
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name] = _TENANT[name](value)
        except KeyError:
            raise ArgumentTypeError(f"{unknown(name, _TENANT)} of a tenant") from None
        except ValueError:
            raise ArgumentTypeError(f"{part!r} of a tenant is no number") from None
    if "name" not in found:
        raise ArgumentTypeError(f"{text!r}: a tenant needs a name")
    return Tenant(**found)


def unknown(name: str, known: Iterable[str]) -> str:
    """That there is no such name, and which one may have been meant."""
    near = get_close_matches(name, list(known), 1, cutoff=0.0)
    return f"unknown key {name!r} (nearest: {near[0]})" if near else f"unknown key {name!r}"


# -- scenarios


class _Scenario(argparse.Action):
    """Reads the file as if its keys were options, into a namespace within the namespace."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        path = Path(values)
        try:
            found = parser.parse_args(_words(parser, _read(path)))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        found.name = getattr(found, "name", path.stem)
        namespace.scenario = found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        # Every scalar stays text: options read text, and YAML takes the names on and off for bools.
        found = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    except OSError as error:
        raise UsageError(error.strerror) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"no YAML: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("no options in it")
    return found


def _words(parser: ArgumentParser, scenario: Mapping[str, Any]) -> list[str]:
    """The command line that says what a scenario says."""
    actions = {
        option.removeprefix("--").replace("-", "_"): action
        for action in parser._actions
        for option in action.option_strings[:1]
        if action.dest not in ("help", "scenario")
    }
    words = []
    for key, value in scenario.items():
        if key not in actions:
            raise UsageError(unknown(key, actions))
        words += _option(key, actions[key], value)
    return words


def _option(key: str, action: argparse.Action, value: Any) -> list[str]:
    if isinstance(action, BooleanOptionalAction):
        if value not in ("true", "false"):
            raise UsageError(f"{key} must be true or false, not {value!r}")
        return [action.option_strings[0 if value == "true" else 1]]
    if action.nargs != "+" and not isinstance(value, str):
        raise UsageError(f"{key} must be one value, not {value!r}")
    if isinstance(value, dict):
        value = [f"{name}={item}" for name, item in value.items()]
    items = value if isinstance(value, list) else [value]
    return [f"{action.option_strings[0]}={_item(key, item)}" for item in items]


def _item(key: str, item: Any) -> str:
    if isinstance(item, dict):
        return ",".join(f"{name}={value}" for name, value in item.items())
    if not isinstance(item, str):
        raise UsageError(f"{key} holds a list in a list")
    return item


# -- the run


def settled(arguments: Namespace) -> Namespace:
    """The options of command line and scenario together, named as in `Run` and its parts.

    Of the scenario only that is taken which the kind of load has a use for.

    Raises:
        UsageError: an option was given that has no meaning with this kind of load.

    """
    given = dict(vars(arguments))
    scenario = vars(given.pop("scenario") or Namespace())
    _refuse_unused(scenario, _kind(scenario))
    kind = _kind(given, default=_kind(scenario))
    _refuse_unused(given, kind)
    kept = {n: v for n, v in scenario.items() if n not in _SHAPING or n in USES[kind]}
    return Namespace(**{**kept, **given, "kind": kind})


def _kind(values: Mapping[str, Any], default: str = Load.kind) -> str:
    implied = "closed" if "concurrency" in values else default
    return str(values.get("kind", implied))


def _refuse_unused(values: Mapping[str, Any], kind: str) -> None:
    for name in sorted((_SHAPING - USES[kind]) & values.keys()):
        option = name.removesuffix("_s").replace("_", "-")
        raise UsageError(f"--{option} has no meaning with --load {kind}")


def sources(given: Namespace) -> list[servers.Source]:
    """The servers that are named, in order, or the one that is meant when none is."""
    found: list[servers.Source] = getattr(given, "sources", [servers.Url(Target.base_url)])
    return found


def directory(given: Namespace) -> Path:
    """Where results go."""
    return Path(getattr(given, "out", RESULTS))


def key(given: Namespace) -> str | None:
    """What a server is asked with outside the load."""
    tenants: list[Tenant] = getattr(given, "tenants", [])
    keys = [getattr(given, "key", None), *(tenant.key for tenant in tenants)]
    return next((key for key in keys if key), None)


def needs_capacity(given: Namespace) -> bool:
    """Whether a rate is relative to a capacity that is not given."""
    values = vars(given)
    rates = [values.get("rate"), values.get("last_rate"), *values.get("rates", ())]
    return "capacity" not in values and any(r is not None and r.relative for r in rates)


def build(given: Namespace, base_url: str, capacity: float | None = None) -> Run:
    """The run that settled options ask of a server.

    Args:
        given: what `settled` returned.
        base_url: of the server.
        capacity: requests/s that were measured, where `needs_capacity`.

    Raises:
        UsageError: two tenants have one name.

    """
    values = {"capacity": capacity, **vars(given)}
    tenants = tuple(values.get("tenants", Spec.tenants))
    if len({tenant.name for tenant in tenants}) < len(tenants):
        raise UsageError("two tenants have one name")
    values |= {
        "base_url": base_url,
        "headers": dict(values.get("headers", ())),
        "probes": tuple(values.get("probes", ())),
        **_rates(values),
    }
    run: Run = _made(
        Run,
        values,
        target=_made(Target, values),
        spec=_made(
            Spec, values, load=_made(Load, values), shape=_made(Shape, values), tenants=tenants
        ),
        slo=Slo(dict(values["slo"])) if "slo" in values else None,
    )
    return run


def capacity_run(given: Namespace, base_url: str) -> Run:
    """The closed loop whose throughput is the capacity that relative rates are multiples of."""
    absolute = Namespace(**{n: v for n, v in vars(given).items() if n not in _SHAPING})
    run = build(absolute, base_url)
    duration = getattr(given, "capacity_duration", CAPACITY_DURATION_S)
    load = replace(
        _made(Load, {n: v for n, v in vars(given).items() if n in _LENGTHS}),
        kind="closed",
        concurrency=getattr(given, "capacity_concurrency", CAPACITY_CONCURRENCY),
        duration_s=duration,
    )
    return replace(
        run,
        name=f"{run.name}-capacity",
        spec=replace(
            run.spec, load=load, seed=run.spec.seed + CAPACITY_SEED, tenants=_sharing(run.spec)
        ),
        warmup_s=min(run.warmup_s, duration / 4),
        drain_s=None,  # or the tokens of long answers would not count
    )


def _sharing(spec: Spec) -> tuple[Tenant, ...]:
    return tuple(tenant for tenant in spec.tenants if not tenant.users)


def check(given: Namespace) -> None:
    """Draw the plan, before a server is started for nothing.

    Raises:
        UsageError: it cannot be drawn.

    """
    make = capacity_run if needs_capacity(given) else build
    plan.draw(make(given, Target.base_url).spec)


def _rates(values: Mapping[str, Any]) -> dict[str, Any]:
    capacity = values["capacity"]
    found: dict[str, Any] = {
        name: values[name].at(capacity) for name in ("rate", "last_rate") if name in values
    }
    if "rates" in values:
        found["rates"] = tuple(rate.at(capacity) for rate in values["rates"])
    return found


def _made(kind: Any, values: Mapping[str, Any], **parts: Any) -> Any:
    """A dataclass of the values that bear the names of its fields, and of `parts`."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{**{n: v for n, v in values.items() if n in names}, **parts})
