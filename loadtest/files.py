"""Files that no other run has."""

from datetime import UTC, datetime
from itertools import count
from pathlib import Path


def create(directory: Path, name: str, suffix: str) -> Path:
    """A new, empty file named after the time (UTC) and `name`."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    for number in count(1):
        path = directory / f"{stem}-{number}{suffix}"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")
