"""Kubernetes' numbers with units: 500m, 4, 8Gi."""

from typing import Any, Final

_UNITS: Final = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def quantity(value: Any) -> float:
    """As a number.

    Raises:
        ValueError: it is none.

    """
    text = str(value)
    number = text.rstrip("mkMGTKi")
    return float(number) * _UNITS.get(text[len(number) :], 1)
