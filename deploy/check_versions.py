"""Whether what is installed is what was tested: `python check_versions.py LOCK [PACKAGE ...]`.

For a RUN line of the images: the status is 1, and each difference a line, when the version of a
package is not the one in the lock. It needs nothing but Python.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FRONT_END = ("fastapi", "starlette", "uvicorn", "pydantic", "prometheus-client")
"""What our own code leans on, and a base image may bring in another version."""

_PIN = re.compile(r"^([a-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    """Every package in the text of a lock, and its version."""
    return dict(_PIN.findall(lock))


def differences(
    packages: Iterable[str],
    tested: Mapping[str, str],
    installed: Callable[[str], str | None],
) -> Iterator[str]:
    """A line for each package that is not there in the version that was tested."""
    for package in packages:
        wanted, found = tested.get(package), installed(package)
        if wanted is None:
            yield f"{package} is not in the lock"
        elif found is None or not same(found, wanted):
            yield f"{package} is {found or 'not installed'}, but {wanted} was tested"


def same(found: str, wanted: str) -> bool:
    """As pip's `==`: what names a build (vLLM's `+cu130`) counts only where it is asked for."""
    return wanted in (found, found.partition("+")[0])


def installed_version(package: str) -> str | None:
    """None when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(lock: str, *packages: str) -> int:
    """Print the differences; the result is the exit status."""
    tested = pins(Path(lock).read_text(encoding="utf-8"))
    found = list(differences(packages or FRONT_END, tested, installed_version))
    for line in found:
        print(f"tidegate: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
