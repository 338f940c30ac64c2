"""A clock that only a test moves."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
