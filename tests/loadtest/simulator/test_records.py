"""Records of steps: what is written can be read, and a bad line is named."""

from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.simulator.records import Record, read, write
from loadtest.simulator.step_time import Work

GOOD = '{"prefill": 1, "decodes": 2, "context": 3, "attention": 4, "seconds": 0.5}'


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    found = [Record(Work(1, 2, 3, 4), 0.5), Record(Work(0, 9, 900, 0), 0.25)]
    write(tmp_path / "records.jsonl", found)
    assert read(tmp_path / "records.jsonl") == found


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"seconds": 1}',
        GOOD.replace("prefill", "prefills"),
        GOOD.replace("0.5", "0"),
        GOOD.replace("0.5", "NaN"),
        GOOD.replace(": 2", ": -2"),
        GOOD.replace(": 2", ': "x"'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(UsageError, match=r"records\.jsonl, line 2"):
        read(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none")
