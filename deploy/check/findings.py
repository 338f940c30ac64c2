"""What is wrong, in one line that names the place."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Finding:
    """Where (an overlay or a file), in which object, at which key, and what."""

    where: str
    subject: str
    key: str
    problem: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.subject, self.key) if part) + (
            f": {self.problem}"
        )


Findings: TypeAlias = Iterator[Finding]
