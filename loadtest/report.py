"""A page that stands alone: verdicts, tables, pictures and every setting of one or more results.

The same results give the same page.
"""

import base64
import dataclasses
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from loadtest import plots, result, settings, table
from loadtest.errors import UsageError
from loadtest.result import Result
from loadtest.table import Section
from loadtest.verdict import Grade

DPI = 110
CAPTIONS = {
    "latency": "Latency of each request by its intended send; crosses failed",
    "distributions": "Share of all offered requests that took at most so long; failures never did",
    "in-flight": "Requests in flight: sent and not ended",
    "rates": "Arrivals (dotted) against completions",
    "gauges": "What the server told of itself",
}
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 sans-serif; max-width: 72rem; margin: 1.5rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }
h1, h2, h3 { line-height: 1.2; }
.verdict { border: 3px solid; border-radius: 4px; padding: .5rem 1rem; margin: .8rem 0; }
.verdict strong { font-size: 1.25rem; }
.valid { border-color: #1b7837; background: #eef7f0; }
.degraded { border-color: #b35806; background: #fdf1e0; }
.invalid { border-color: #b2182b; background: #fbe4e6; }
.warning { background: #b2182b; color: #fff; padding: .6rem 1rem; font-weight: bold; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem .15rem 0; text-align: right; white-space: nowrap; }
td:first-child, th:first-child, .words td { text-align: left; }
.words td { white-space: normal; overflow-wrap: anywhere; vertical-align: top; }
tr { border-bottom: 1px solid #e4e4e4; }
.note { color: #555; font-size: .9em; max-width: 60rem; }
img { max-width: 100%; }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem; font-size: .85em; }
figure { margin: 1.5rem 0; }
</style>
</head>
<body>
{%- macro show(section) %}
<h3>{{ section.title }}</h3>
<div class="scroll"><table{% if not section.head %} class="words"{% endif %}>
{%- if section.head %}
<tr>{% for cell in section.head %}<th>{{ cell }}</th>{% endfor %}</tr>
{%- endif %}
{%- for row in section.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</table></div>
{%- if section.note %}
<p class="note">{{ section.note }}</p>
{%- endif %}
{%- endmacro %}
<h1>{{ title }}</h1>
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
<h2>Pictures</h2>
{%- for picture in pictures %}
<figure><figcaption>{{ picture.caption }}</figcaption>
<img alt="{{ picture.caption }}" src="data:image/png;base64,{{ picture.data }}"></figure>
{%- endfor %}
<h2>In full</h2>
{%- for part in parts %}
<details><summary>{{ part.label }}: settings, environment, summary</summary>
<pre>{{ part.whole }}</pre></details>
{%- endfor %}
</body>
</html>
"""


def write(results: Sequence[Path], out: Path) -> list[Path]:
    """Write the page to `out` and its pictures beside it as `STEM-NAME.png`.

    Returns:
        What was written, the page first.

    Raises:
        UsageError: a result cannot be read or the page not be written.

    """
    loaded = [result.load(path) for path in results]
    pictures = {name: _png(figure) for name, figure in plots.draw(loaded).items()}
    files = {out: page(loaded, pictures).encode()}
    files |= {out.with_name(f"{out.stem}-{name}.png"): png for name, png in pictures.items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    return list(files)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def page(results: Sequence[Result], pictures: Mapping[str, bytes]) -> str:
    """The page of results, with pictures as PNG by name."""
    labels = table.labels(results)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(PAGE).render(
        title=f"Load test: {', '.join(labels)}",
        warning=_warning(results),
        parts=[_part(label, found) for label, found in zip(labels, results, strict=True)],
        compared=[_differences(results), table.comparison(results)] if len(results) > 1 else [],
        pictures=[
            {"caption": CAPTIONS[name], "data": base64.b64encode(png).decode()}
            for name, png in pictures.items()
        ],
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
