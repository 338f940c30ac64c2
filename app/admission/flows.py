"""Fair share between keys: virtual token counters.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): each key has a counter
of the tokens it was served, an output token weighing twice a prompt token; the waiting key with the
lowest counter is next. A key that comes back from idleness starts at the lowest counter among the
active ones, so that idleness is not saved up.
"""

import math
from dataclasses import dataclass

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0


@dataclass(eq=False)
class Flow:
    """One key's work.

    Attributes:
        served: weighted tokens; only comparisons between active flows mean anything.
        waiting: accepted sequences that the engine has not been handed.
        live: sequences that it has.
        coming: sequences that were let through and are not in `live` yet.
        denied_at: when it was last refused for overload, seconds.

    """

    name: str
    served: float = 0.0
    waiting: int = 0
    live: int = 0
    coming: int = 0
    denied_at: float = -math.inf

    @property
    def inside(self) -> int:
        return self.live + self.coming

    @property
    def active(self) -> bool:
        return self.waiting > 0 or self.inside > 0

    def prompt(self, tokens: int) -> None:
        self.served += PROMPT_WEIGHT * tokens

    def output(self, tokens: int) -> None:
        self.served += OUTPUT_WEIGHT * tokens


class Flows:
    """All keys that have been seen."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}
        self._floor = 0.0

    def of(self, name: str) -> Flow:
        """The flow of a request that comes now."""
        flow = self._flows.setdefault(name, Flow(name))
        if not flow.active:
            active = [other.served for other in self._flows.values() if other.active]
            # With nobody active there is nobody to be fair to: go on from where the last one was.
            self._floor = min(active, default=self._floor)
            flow.served = max(flow.served, self._floor)
        return flow

    def left(self, flow: Flow) -> None:
        """Note that a flow may have become idle."""
        if not flow.active and not any(other.active for other in self._flows.values()):
            self._floor = flow.served
