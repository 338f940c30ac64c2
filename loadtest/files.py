"""Files that no other run has, and those that somebody named."""

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from loadtest.errors import UsageError


def create(directory: Path, name: str, suffix: str, becomes: str | None = None) -> Path:
    """A new, empty file named after the time (UTC) and `name`.

    Args:
        directory: made where it is missing.
        name: what it is of.
        suffix: the end of its name.
        becomes: the end of the name that it will have one day, which is free too.

    """
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
    for number in count(1):
        path = directory / f"{stem}-{number}{suffix}"
        if becomes is not None and path.with_name(f"{stem}-{number}{becomes}").exists():
            continue
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")


def write(path: Path, content: bytes) -> None:
    """Write a file that was asked for by name, and make its directory where it is missing.

    Raises:
        UsageError: it cannot be written.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
