"""Nothing here depends on how busy the machine is: all of it runs beside others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import environment


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.beside)


@pytest.fixture
def environment_kept() -> Iterator[None]:
    """An engine in this process knows nothing of services before it, nor they of it after."""
    with environment.environment_kept():
        environment.forget_services()
        yield
