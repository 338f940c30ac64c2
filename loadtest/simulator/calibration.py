"""A file that says how fast an engine is: terms, their box, and what they were measured on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from loadtest.errors import UsageError
from loadtest.simulator.fit import TERMS, Errors, Estimate, Fit
from loadtest.simulator.step_time import Box, Coefficients, Work

SCHEMA = 1


@dataclass(frozen=True)
class FrontEnd:
    """Seconds.

    Attributes:
        accept: from a request's arrival until the engine could begin with it.
        accept_token: the same, for each token of its prompt.
        emit: from a step's end until a token of it was at the client.

    """

    accept: float = 0.0
    accept_token: float = 0.0
    emit: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` found.

    Attributes:
        model: its name.
        engine: vLLM's settings that it was measured with.
        held_out: errors on a mixed load that the fit has not seen.
        environment: the machine, and versions.

    """

    model: str
    engine: Mapping[str, Any]
    fit: Fit
    front: FrontEnd = field(default_factory=FrontEnd)
    held_out: Errors | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def coefficients(self) -> Coefficients:
        """What the simulator takes."""
        return Coefficients(
            **{name: self.fit.terms[name].value for name in TERMS}, **asdict(self.front)
        )

    @property
    def box(self) -> Box:
        return self.fit.box

    def dump(self) -> dict[str, Any]:
        """As JSON types."""
        return {"schema": SCHEMA, "kind": "calibration", **asdict(self)}


def load(path: Path) -> Calibration:
    """Read one.

    Raises:
        UsageError: it is not one.

    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != "calibration" or content["schema"] != SCHEMA:
            raise UsageError(f"{path}: not a calibration of schema {SCHEMA}")
        held_out = content["held_out"]
        return Calibration(
            model=content["model"],
            engine=content["engine"],
            fit=_fit(content["fit"]),
            front=FrontEnd(**content["front"]),
            held_out=held_out and Errors(**held_out),
            environment=content["environment"],
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: not a calibration: {error!r}") from None


def _fit(content: Mapping[str, Any]) -> Fit:
    values = {one.name: content[one.name] for one in fields(Fit)}
    values["terms"] = {name: Estimate(**content["terms"][name]) for name in TERMS}
    values["box"] = Box(**{end: Work(**content["box"][end]) for end in ("least", "most")})
    values["errors"] = Errors(**content["errors"])
    return Fit(**values)
