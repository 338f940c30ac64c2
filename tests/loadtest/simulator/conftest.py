"""Nothing here depends on how busy the machine is: all of it runs beside others."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.beside)


@pytest.fixture
def environment_kept() -> Iterator[None]:
    """What an engine in this process is told there is not for the services of other tests."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
