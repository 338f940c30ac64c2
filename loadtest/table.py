"""What a result says in words and numbers: sections of rows, and those as plain text."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest import bootstrap
from loadtest.bootstrap import Floats, Statistic
from loadtest.metrics import MIN_FOR_P99, NAMES
from loadtest.plan import Load
from loadtest.record import Record
from loadtest.result import Result
from loadtest.text import aligned
from loadtest.verdict import Grade, send_lag_p99

WIDTH = 100  # of a note
NONE = "-"
NEVER = "∞"
LATENCIES = {
    "ttft": "TTFT",
    "effective_ttft": "effective TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "effective_e2e": "effective E2E",
}
COLUMNS = ("mean", "p50", "p90", "p95", "p99")
ADVICE = {
    Grade.VALID: "",
    Grade.DEGRADED: ": read the reasons before you use a number",
    Grade.INVALID: ": do not use these numbers",
}
_LOADS = {
    "constant": "constant {rate:g}/s for {duration_s:g} s",
    "poisson": "Poisson {rate:g}/s for {duration_s:g} s",
    "gamma": "gamma {rate:g}/s with CV {cv:g} for {duration_s:g} s",
    "bursts": "bursts of {rate:g}/s, {on_s:g} s on and {off_s:g} s off, for {duration_s:g} s",
    "steps": "steps of {rates}/s, {step_s:g} s each",
    "ramp": "ramp from {rate:g}/s to {last_rate:g}/s in {duration_s:g} s",
    "trace": "{trace}, time × {time_scale:g}, lengths × {length_scale:g}, up to {duration_s:g} s",
    "closed": "closed loop of {concurrency} for {duration_s:g} s",
}


@dataclass(frozen=True)
class Section:
    """A part of a report: a table with or without a head, its first column the names."""

    title: str
    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    note: str = ""


def number(value: float | None) -> str:
    """With four significant digits and no exponent; `-` for None and for what is no number."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return NEVER
    if value == 0:
        return "0"
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def share(value: float | None) -> str:
    """In per cent."""
    return NONE if value is None else f"{number(100 * value)} %"


def labels(results: Sequence[Result]) -> list[str]:
    """A name for each that no other has, and that tells when it is not to be believed."""
    names = [result.run.name for result in results]
    return [
        name
        + (f" #{position}" if names.count(name) > 1 else "")
        + ("" if result.verdict.grade is Grade.VALID else f" ({result.verdict.grade.upper()})")
        for position, (name, result) in enumerate(zip(names, results, strict=True), start=1)
    ]


def headline(result: Result) -> str:
    """The verdict in a line."""
    return f"{result.verdict.grade.upper()}{ADVICE[result.verdict.grade]}"


def sections(result: Result) -> list[Section]:
    """All of one result but its verdict."""
    found = [_settings(result), _requests(result), _rates(result), _latencies(result)]
    if "tenants" in result.summary:
        found.append(_tenants(result.summary["tenants"]))
    if result.probes:
        found.append(_probes(result.probes))
    return [*found, _client(result)]


def _settings(result: Result) -> Section:
    run = result.run
    rows = [
        ("name", run.name),
        ("started", result.started_at.isoformat(timespec="seconds")),
        ("server", f"{run.target.base_url}, {run.target.endpoint}"),
        ("model", run.target.model or "the server's first"),
        ("load", describe(run.spec.load)),
        ("tokens", f"prompt {run.spec.shape.prompt}, output {run.spec.shape.output}"),
        ("seed", str(run.spec.seed)),
        ("window", f"{result.window[0]:.1f} s to {result.window[1]:.1f} s"),
    ]
    return Section("Settings", rows)


def describe(load: Load) -> str:
    """A load in a few words."""
    values = dataclasses.asdict(load) | {"rates": ", ".join(f"{rate:g}" for rate in load.rates)}
    text = _LOADS[load.kind].format(**values)
    return text if load.requests is None else f"{text}, {load.requests} requests at most"


def _requests(result: Result) -> Section:
    summary = result.summary
    offered = summary["offered"]
    rows = [("offered", str(offered), "")]
    rows += [
        (name, str(count), share(count / offered))
        for name, count in summary["outcomes"].items()
        if count or name == "ok"
        if offered
    ]
    return Section("Requests", rows)


def _rates(result: Result) -> Section:
    summary = result.summary
    rows = [
        ("offered, requests/s", number(summary["offered_per_s"])),
        ("served, requests/s", number(summary["requests_per_s"])),
        ("output tokens/s", number(summary["output_tokens_per_s"])),
        ("output tokens", str(summary["output_tokens"])),
        ("prompt tokens", str(summary["prompt_tokens"])),
    ]
    if "goodput" not in summary:
        return Section("Rates", rows)
    good = summary["goodput"]
    bounds = ", ".join(f"{LATENCIES[name]} ≤ {b:g} s" for name, b in good["slo_s"].items())
    rows += [
        ("goodput, requests/s", number(good["requests_per_s"])),
        ("goodput, output tokens/s", number(good.get("output_tokens_per_s"))),
        ("goodput, of the offered", share(good["share_of_offered"])),
    ]
    return Section("Rates", rows, note=f"goodput: {bounds}; TTFT and E2E from the intended send")


def _latencies(result: Result) -> Section:
    summary = result.summary
    found = summary["latency_s"]
    rows = [
        (label, *(_ms(found[name][column]) for column in COLUMNS))
        for name, label in LATENCIES.items()
    ]
    rows += [
        (
            f"{LATENCIES[name]}, all offered",
            *(_ms(_of_all(summary, name, column)) for column in COLUMNS),
        )
        for name in summary["latency_of_all_offered_s"]
    ]
    if summary["outcomes"]["rejected"]:
        found = summary["rejection_s"]
        rows.append(("refusal", *(_ms(found[column]) for column in COLUMNS)))
    note = "effective: from the intended send; all offered: a request that failed takes for ever"
    if summary["outcomes"]["ok"] < MIN_FOR_P99:
        note += f"; no p99 below {MIN_FOR_P99} successes"
    return Section("Latency, ms", rows, ("", *COLUMNS), note)


def _of_all(summary: Mapping[str, Any], name: str, column: str) -> float | None:
    """Of all offered, where None stands for infinite; None: it was not measured at all."""
    succeeded, measured = summary["outcomes"]["ok"], summary["latency_s"][name]["mean"]
    if column == "mean" or not summary["offered"] or (succeeded and measured is None):
        return None
    seconds: float | None = summary["latency_of_all_offered_s"][name][column]
    return math.inf if seconds is None else seconds


def _ms(seconds: float | None) -> str:
    return number(_thousandfold(seconds))


def _thousandfold(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def _tenants(summaries: Mapping[str, Mapping[str, Any]]) -> Section:
    head = ("", "offered", "ok", "served/s", "tokens/s", "TTFT p50", "TTFT p99", "E2E p50", "good")
    rows = [
        (
            name,
            str(found["offered"]),
            str(found["outcomes"]["ok"]),
            number(found["requests_per_s"]),
            number(found["output_tokens_per_s"]),
            _ms(found["latency_s"]["ttft"]["p50"]),
            _ms(found["latency_s"]["ttft"]["p99"]),
            _ms(found["latency_s"]["e2e"]["p50"]),
            share(found.get("goodput", {}).get("share_of_offered")),
        )
        for name, found in summaries.items()
    ]
    return Section("Tenants, latency in ms", rows, head)


def _probes(probes: Mapping[str, Mapping[str, Any]]) -> Section:
    rows = [
        (path, str(found["sent"]), str(found["failed"]), _ms(found["p50"]), _ms(found["p99"]))
        for path, found in probes.items()
    ]
    return Section("Probes, latency in ms", rows, ("", "sent", "failed", "p50", "p99"))


def _client(result: Result) -> Section:
    harness = result.harness
    rows = [
        ("busiest worker, of a core", share(harness.cpu_share)),
        ("loop lag p99, ms", _ms(harness.loop_lag_p99_s)),
        ("send lag p99, ms", _ms(send_lag_p99(result.measured))),
        ("server's prefix-cache hits", share(result.prefix_cache_hit_rate)),
    ]
    return Section("Client and server", rows)


@dataclass(frozen=True)
class Measure:
    """What results are compared by.

    Attributes:
        value: None where a result lacks it.
        sample: a series in order of time and the statistic of it that is the value, or is in
            proportion to it; None: it has no interval.

    """

    label: str
    value: Callable[[Result], float | None]
    sample: Callable[[Result], Floats] | None = None
    statistic: Statistic = bootstrap.mean


def _measures() -> Iterator[Measure]:
    yield Measure("offered, requests/s", lambda r: r.summary["offered_per_s"])
    yield Measure("succeeded, %", _succeeded)
    yield Measure("served, requests/s", lambda r: r.summary["requests_per_s"], _ends)
    yield Measure("output tokens/s", lambda r: r.summary["output_tokens_per_s"])
    yield Measure("goodput, requests/s", _goodput, _good)
    for name in ("ttft", "tpot", "e2e"):
        for percent in (50, 99):
            yield _latency(name, percent)
    for name in ("effective_ttft", "effective_e2e"):
        for percent in (50, 99):
            yield _latency_of_all(name, percent)


def _succeeded(result: Result) -> float | None:
    offered = result.summary["offered"]
    return 100 * result.summary["outcomes"]["ok"] / offered if offered else None


def _goodput(result: Result) -> float | None:
    value: float | None = result.summary.get("goodput", {}).get("requests_per_s")
    return value


def _latency(name: str, percent: int) -> Measure:
    def value(result: Result) -> float | None:
        return _thousandfold(result.summary["latency_s"][name][f"p{percent}"])

    def sample(result: Result) -> Floats:
        successes = [r for r in _in_order(result.measured) if r.ok]
        return np.array([v for r in successes if (v := NAMES[name](r)) is not None])

    label = f"{LATENCIES[name]} p{percent}, ms"
    return Measure(label, value, sample, bootstrap.percentile(percent))


def _latency_of_all(name: str, percent: int) -> Measure:
    def value(result: Result) -> float | None:
        return _thousandfold(_of_all(result.summary, name, f"p{percent}"))

    return Measure(f"{LATENCIES[name]} p{percent}, all offered, ms", value)


def _in_order(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.intended)


BINS = 10 * bootstrap.BLOCKS


def _ends(result: Result) -> Floats:
    return _binned([r.ended for r in result.records if r.ok and r.ended is not None], result)


def _good(result: Result) -> Floats:
    slo = result.run.slo
    good = [r.intended for r in result.measured if slo is not None and slo.met(r)]
    return _binned(good, result)


def _binned(times: Sequence[float], result: Result) -> Floats:
    """Events per second in equal parts of the window."""
    start, end = result.window
    if end <= start:
        return np.empty(0)
    return np.histogram(times, BINS, (start, end))[0] * (BINS / (end - start))


def comparison(results: Sequence[Result]) -> Section:
    """Results side by side: ratios to the first, with intervals where records give them."""
    first, *others = results
    rows = [
        (m.label, number(m.value(first)), *(_against(m, first, other) for other in others))
        for m in _measures()
        if any(m.value(result) is not None for result in results)
    ]
    note = (
        "×ratio to the first [95 % bootstrap interval of it]. An interval knows what varied within"
        " a run, not from run to run, and is too narrow for a p99 near saturation: compare repeated"
        " runs before you rely on a small difference. TTFT, TPOT and E2E are of the successes."
    )
    return Section("Side by side", rows, ("", *labels(results)), note)


def _against(measure: Measure, first: Result, other: Result) -> str:
    value, base = measure.value(other), measure.value(first)
    if value is None or base is None or not (0 < base < math.inf):
        return number(value)
    text = f"{number(value)}  ×{number(value / base)}"
    if measure.sample is None:
        return text
    low, high = bootstrap.ratio_interval(
        measure.sample(other), measure.sample(first), measure.statistic
    )
    return f"{text} [{number(low)}, {number(high)}]"


def render(result: Result) -> str:
    """A result as plain text, the verdict first and last."""
    parts = [_banner(result), *(_text(section) for section in sections(result))]
    parts += ["".join(f"note: {note}\n" for note in result.notes)] if result.notes else []
    return "\n".join([*parts, _banner(result)])


def side_by_side(results: Sequence[Result]) -> str:
    """Two or more results as plain text: each verdict, then ratios to the first."""
    banners = [
        f"{label}:\n{_banner(result)}"
        for label, result in zip(labels(results), results, strict=True)
    ]
    return "\n".join([*banners, _text(comparison(results))])


def _banner(result: Result) -> str:
    lines = [f"verdict: {headline(result)}", *(f"  - {r}" for r in result.verdict.reasons)]
    if result.verdict.grade is Grade.VALID:
        return "\n".join(lines) + "\n"
    bar = "!" * max(len(line) + 3 for line in lines)
    return "\n".join([bar, *(f"!! {line}" for line in lines), bar]) + "\n"


def _text(section: Section) -> str:
    rows = [*([section.head] if section.head else []), *section.rows]
    # Without a head: names and their values, not columns of numbers.
    table = aligned(rows, left=not section.head)
    lines = [section.title, *(f"  {line}".rstrip() for line in table.split("\n") if rows)]
    if section.note:
        lines += textwrap.wrap(
            f"({section.note})", WIDTH, initial_indent="  ", subsequent_indent="  "
        )
    return "\n".join(lines) + "\n"
