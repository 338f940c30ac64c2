"""The page: whole, self-contained, harmless, the same for the same results."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loadtest import report, table
from loadtest.errors import UsageError
from loadtest.record import Outcome
from loadtest.result import Draft, Gauges, Result
from loadtest.settings import Run, Target
from loadtest.verdict import Harness
from tests.loadtest.factory import records, result

PNG = b"\x89PNG\r\n\x1a\n"
PICTURES = ["latency", "distributions", "in-flight", "rates", "gauges"]
VOID = {"meta", "img", "br"}
ALONE = result("a", fail_every=10)
WORTHLESS = Harness(cpu_share=0.9, server_restarted=True)


class Page(HTMLParser):
    """Parsed strictly: every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def written(tmp_path: Path, *results: Result, name: str = "page") -> tuple[Page, list[Path]]:
    paths = []
    for position, found in enumerate(results):
        paths.append(tmp_path / f"{position}.json")
        found.save(paths[-1])
    files = report.write(paths, tmp_path / "out" / f"{name}.html")
    return Page(files[0].read_text(encoding="utf-8")), files


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, list[Path]]:
    return written(tmp_path_factory.mktemp("alone"), ALONE, name="x")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, list[Path]]:
    other = result("b", scale=1.5, seed=1)
    return written(tmp_path_factory.mktemp("pair"), result("a", harness=WORTHLESS), other)


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(value, int | float):
        yield path, value


def test_it_has_every_number_in_tables_and_in_full(alone: tuple[Page, list[Path]]) -> None:
    page, _ = alone
    cells = {text.removesuffix(" %") for text in page.texts}
    seen = dict(numbers(ALONE.summary))
    assert len(seen) > 50
    for path, value in seen.items():
        assert re.search(rf"[: ]{re.escape(json.dumps(value))}[,\n]", page.text), path
        if path.startswith(".latency"):
            assert table.number(1000 * value) in cells, path
        elif path.endswith(("_per_s", "tokens")):
            assert cells & {table.number(value), str(value)}, path
        elif path.startswith(".outcomes") and value:
            assert str(value) in cells, path


def test_it_needs_nothing_from_elsewhere(pair: tuple[Page, list[Path]]) -> None:
    page, files = pair
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert len(sources) == len(PICTURES)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"url\(|@import", files[0].read_text(encoding="utf-8"))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert ("content", policy) in page.attributes


def test_the_pictures_lie_beside_it(alone: tuple[Page, list[Path]]) -> None:
    _, files = alone
    assert [file.name for file in files] == ["x.html", *(f"x-{name}.png" for name in PICTURES)]
    assert {file.parent for file in files} == {files[0].parent}
    for file in files[1:]:
        assert file.read_bytes().startswith(PNG)


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    results = (result("a", 40), result("b", 40, scale=2.0))
    first = [file.read_bytes() for file in written(tmp_path, *results)[1]]
    assert [file.read_bytes() for file in written(tmp_path, *results)[1]] == first


HOSTILE = "<script>alert('&')</script>\"'><img src=http://x/>"


def test_a_hostile_name_is_text(tmp_path: Path) -> None:
    found = result(
        HOSTILE, 50, target=Target(model=HOSTILE), notes=[HOSTILE], environment={HOSTILE: HOSTILE},
        tenants=(HOSTILE, "b"),
    )  # fmt: skip
    page, files = written(tmp_path, found, result("b", 50))
    assert "script" not in page.tags
    assert page.tags.count("img") == len(PICTURES)
    assert "<script" not in files[0].read_text(encoding="utf-8")
    assert HOSTILE in page.text


def test_a_name_with_dollars_is_not_mathematics(tmp_path: Path) -> None:
    written(tmp_path, result(r"$\frac{1$ _hidden", 50), result("_b", 50))


def test_the_verdict_comes_first_with_its_reasons(
    alone: tuple[Page, list[Path]], pair: tuple[Page, list[Path]]
) -> None:
    page, _ = pair
    order = [
        page.text.index(text)
        for text in (
            "a (INVALID): INVALID",
            "the server restarted",
            "a worker used 90% of a core",
            "b: VALID",
            "1 of 2 results",
            "What differs",
            "Side by side",
            "Latency, ms",
        )
    ]
    assert order == sorted(order)
    assert ("class", "verdict invalid") in page.attributes
    valid, _ = alone
    assert "not valid" not in valid.text
    assert "INVALID" not in valid.text


def test_what_differs_is_listed_and_nothing_else(tmp_path: Path) -> None:
    a = result("a", 60, environment={"server": {"version": "1"}, "cores": 2})
    b = result("b", 60, rate=20.0, environment={"server": {"version": "2"}, "cores": 2})
    page, _ = written(tmp_path, a, b)
    start, end = page.text.index("What differs"), page.text.index("Side by side")
    names = re.findall(r"^[a-z_0-9.]+\.[a-z_]+$", page.text[start:end], re.MULTILINE)
    assert names == [
        "spec.load.rate",
        "spec.load.duration_s",
        "environment.server.version",
    ]


def test_two_are_compared_with_intervals_and_one_is_not(
    alone: tuple[Page, list[Path]], pair: tuple[Page, list[Path]]
) -> None:
    both, one = pair[0], alone[0]
    assert any(re.search(r"×1\.\d+ \[1\.\d+, 1\.\d+\]", text) for text in both.texts)
    assert "Side by side" not in one.text
    assert "×" not in one.text


def test_a_killed_run_is_shown_as_far_as_it_went(tmp_path: Path) -> None:
    draft = Draft(tmp_path, Run("cut", warmup_s=1.0), datetime(2026, 1, 2, tzinfo=UTC), {})
    draft.add(records(50))
    (partial,) = tmp_path.glob("*.partial.jsonl")
    with partial.open("a", encoding="utf-8") as out:
        out.write('{"index": 50, "ten')
    page, files = report.write([partial], tmp_path / "page.html"), tmp_path / "page.html"
    text = Page(files.read_text(encoding="utf-8")).text
    assert "cut (INVALID): INVALID" in text
    assert "the run was killed" in text
    assert len(page) == len(PICTURES)  # all but the gauges, which a partial file has not
    draft.discard()


@pytest.mark.parametrize(
    "found",
    [
        result(count=60, fail_every=1),
        result(count=60, fail_every=1, outcome=Outcome.CONNECTION, tenants=("a", "b")),
        result(count=1, warmup_s=0.0),
        result(count=1, warmup_s=9.0),
        result(count=0),
        result(count=40, gauges=Gauges([0.0, 1.0], {"running": [None, None]})),
        result(count=40, slo=None),
    ],
    ids=["all failed", "no connection", "one request", "no window", "nothing", "blind", "no SLO"],
)
def test_little_to_show_is_shown(tmp_path: Path, found: Result) -> None:
    page, files = written(tmp_path, found)
    assert len(files) == 1 + len(PICTURES)
    assert "Latency, ms" in page.text
    assert "nan" not in re.split(r"\W+", page.text)
    assert "Side by side" in report.rendered([found, result("other", 40)], {})


def test_a_server_without_gauges_has_no_picture_of_them(tmp_path: Path) -> None:
    found = result(count=40, gauges=Gauges([0.0], {}))
    _, files = written(tmp_path, found)
    assert [file.stem for file in files[1:]] == [f"page-{name}" for name in PICTURES[:-1]]


def test_what_is_no_result_or_no_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="not a result"):
        report.write([tmp_path / "x.json"], tmp_path / "page.html")
    good = tmp_path / "good.json"
    result(count=40).save(good)
    (tmp_path / "dir.html").mkdir()
    with pytest.raises(UsageError, match=r"dir\.html") as raised:
        report.write([good], tmp_path / "dir.html")
    assert "\n" not in str(raised.value)
