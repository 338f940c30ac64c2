"""An engine in the process of the tests."""

from collections.abc import Iterator

import pytest

from tests.rig import environment


@pytest.fixture
def environment_kept() -> Iterator[None]:
    """An engine in this process knows nothing of services before it, nor they of it after."""
    with environment.environment_kept():
        environment.forget_services()
        yield
