"""What pages have in common: a page stands alone, and loads nothing from anywhere."""

import base64
import io
from typing import Any

import jinja2
from matplotlib.figure import Figure

DPI = 110
_HEAD = """\
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
"""
PICTURES = """\
<h2>Pictures</h2>
{%- for picture in pictures %}
<figure><figcaption>{{ picture.caption }}</figcaption>
<img alt="{{ picture.caption }}" src="data:image/png;base64,{{ picture.data }}"></figure>
{%- endfor %}
"""
_END = """\
</body>
</html>
"""


def render(body: str, title: str, **values: Any) -> str:
    """A page.

    Args:
        body: a template; `show(section)` makes a table of a `Section`, and `PICTURES`, where it is
            part of it, shows `pictures`.
        title: its heading too.
        values: what the template names.

    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_HEAD + body + _END).render(title=title, **values)


def png(figure: Figure) -> bytes:
    """A figure as a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def picture(caption: str, content: bytes) -> dict[str, str]:
    """One of `pictures`: a PNG and what it shows."""
    return {"caption": caption, "data": base64.b64encode(content).decode()}
