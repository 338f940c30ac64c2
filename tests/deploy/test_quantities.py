"""Numbers with units."""

import pytest

from deploy.check.quantities import quantity


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4), (4, 4), ("500m", 0.5), ("1.5", 1.5), ("8Gi", 2**33), ("2k", 2000)]
)
def test_a_quantity(text: object, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def test_what_is_none() -> None:
    with pytest.raises(ValueError, match="four"):
        quantity("four")
