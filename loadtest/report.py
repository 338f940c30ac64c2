"""A page that stands alone: verdicts, tables, pictures and every setting of one or more results.

The same results give the same page.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest import files, page, plots, result, settings, table
from loadtest.result import Result
from loadtest.table import Section
from loadtest.verdict import Grade

CAPTIONS = {
    "latency": "Latency of each request by its intended send; crosses failed",
    "distributions": "Share of all offered requests that took at most so long; failures never did",
    "in-flight": "Requests in flight: sent and not ended",
    "rates": "Arrivals (dotted) against completions",
    "gauges": "What the server told of itself",
}
BODY = (
    """\
{%- for part in parts %}
<div class="verdict {{ part.result.verdict.grade }}">
<strong>{{ part.label }}: {{ part.headline }}</strong>
{%- if part.result.verdict.reasons %}
<ul>{% for reason in part.result.verdict.reasons %}<li>{{ reason }}</li>{% endfor %}</ul>
{%- endif %}
</div>
{%- endfor %}
{%- if warning %}
<p class="warning">{{ warning }}</p>
{%- endif %}
{%- for section in compared %}{{ show(section) }}{% endfor %}
{%- for part in parts %}
<h2>{{ part.label }}</h2>
{%- for section in part.sections %}{{ show(section) }}{% endfor %}
{%- for note in part.result.notes %}
<p>Note: {{ note }}</p>
{%- endfor %}
{%- endfor %}
"""
    + page.PICTURES
    + """\
<h2>In full</h2>
{%- for part in parts %}
<details><summary>{{ part.label }}: settings, environment, summary</summary>
<pre>{{ part.whole }}</pre></details>
{%- endfor %}
"""
)


def write(results: Sequence[Path], out: Path) -> list[Path]:
    """Write the page to `out` and its pictures beside it as `STEM-NAME.png`.

    Returns:
        What was written, the page first.

    Raises:
        UsageError: a result cannot be read or the page not be written.

    """
    loaded = [result.load(path) for path in results]
    pictures = {name: page.png(figure) for name, figure in plots.draw(loaded).items()}
    written = {out: rendered(loaded, pictures).encode()}
    written |= {out.with_name(f"{out.stem}-{name}.png"): png for name, png in pictures.items()}
    for path, content in written.items():
        files.write(path, content)
    return list(written)


def rendered(results: Sequence[Result], pictures: Mapping[str, bytes]) -> str:
    """The page of results, with pictures as PNG by name."""
    labels = table.labels(results)
    return page.render(
        BODY,
        title=f"Load test: {', '.join(labels)}",
        warning=_warning(results),
        parts=[_part(label, found) for label, found in zip(labels, results, strict=True)],
        compared=[_differences(results), table.comparison(results)] if len(results) > 1 else [],
        pictures=[page.picture(CAPTIONS[name], png) for name, png in pictures.items()],
    )


def _part(label: str, found: Result) -> dict[str, Any]:
    whole = {
        "started_at": found.started_at.isoformat(),
        "settings": settings.dump(found.run),
        "environment": found.environment,
        "summary": found.summary,
        "harness": dataclasses.asdict(found.harness),
    }
    return {
        "label": label,
        "headline": table.headline(found),
        "result": found,
        "sections": table.sections(found),
        "whole": json.dumps(whole, indent=2, ensure_ascii=False),
    }


def _warning(results: Sequence[Result]) -> str | None:
    doubtful = sum(found.verdict.grade is not Grade.VALID for found in results)
    if not doubtful or len(results) == 1:
        return None  # a single verdict is right above
    return f"{doubtful} of {len(results)} results are not valid: a ratio with one is not either."


def _differences(results: Sequence[Result]) -> Section:
    """Settings and environment that are not the same for all."""
    flat = [
        dict(_flat({**settings.dump(found.run), "environment": found.environment}))
        for found in results
    ]
    names = dict.fromkeys(name for values in flat for name in values)
    rows = [
        (name, *(values.get(name, table.NONE) for values in flat))
        for name in names
        if len({values.get(name) for values in flat}) > 1
    ]
    note = "" if rows else "Settings and environment are the same."
    return Section("What differs between them", rows, ("", *table.labels(results)), note)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Names with dots, and values as text."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)
