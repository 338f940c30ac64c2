"""Pods: from being asked for to being gone. A GPU is paid for all the while."""

from dataclasses import dataclass

from loadtest.simulator import hpa
from loadtest.simulator.autoscaler import Samples
from loadtest.simulator.replica import Replica
from loadtest.simulator.ticks import Ticks


@dataclass(frozen=True)
class Start:
    """A cold start: pending (a node, the image), then running without being ready (the model)."""

    pending_s: float
    loading_s: float

    @property
    def total_s(self) -> float:
        return self.pending_s + self.loading_s


STARTS = {"warm": Start(5.0, 55.0), "typical": Start(60.0, 180.0), "new-node": Start(300.0, 240.0)}
"""60 s where the node and the image are there, 240 s usually, 540 s with a new node."""


@dataclass(eq=False)
class Pod:
    """One of them. While it loads, its gauges are there and 0.

    Attributes:
        running: when its container begins.
        ready: when it takes requests.
        deleted: when it was told to end; None: it was not.
        gone: when it had ended; None: it is there.

    """

    number: int
    created: Ticks
    running: Ticks
    ready: Ticks
    replica: Replica
    samples: Samples
    deleted: Ticks | None = None
    gone: Ticks | None = None

    def takes(self, now: Ticks) -> bool:
        """Whether requests are sent to it."""
        return self.deleted is None and self.ready <= now

    def seen(self, now: Ticks) -> hpa.Pod:
        """By the controller."""
        phase: hpa.Phase = "Running" if self.running <= now else "Pending"
        return hpa.Pod(str(self.number), phase, self.deleted is not None)

    def lived(self, now: Ticks) -> Ticks:
        """For how long a GPU was held for it."""
        return (now if self.gone is None else self.gone) - self.created


def victims(pods: list[Pod], count: int, now: Ticks) -> list[Pod]:
    """Which go first, as a ReplicaSet has it: what is not ready, then the latest that became so."""
    alive = [pod for pod in pods if pod.deleted is None]
    order = sorted(
        alive,
        key=lambda pod: (pod.running <= now, pod.ready <= now, -pod.ready, -pod.created),
    )
    return order[:count]
