"""Reads the engine's state every few seconds and publishes it."""

import asyncio
import logging
from collections.abc import Callable

from app.telemetry.logs import fields
from app.telemetry.metrics import Metrics, Snapshot

logger = logging.getLogger(__name__)


class Saturation:
    """Tells a crossing of the threshold from staying above it."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.above = False

    def crossed(self, pending: int) -> bool:
        """Whether `pending` is the first value above the threshold since one at or below it."""
        was, self.above = self.above, pending > self.threshold
        return self.above and not was


class Poller:
    """Publishes a snapshot at an interval, and whenever a scrape asks. Never raises."""

    def __init__(
        self,
        read: Callable[[], Snapshot],
        metrics: Metrics,
        interval_s: float,
        saturation_threshold: int,
    ) -> None:
        self.read = read
        self.metrics = metrics
        self.interval_s = interval_s
        self.saturation = Saturation(saturation_threshold)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self.poll()
            await asyncio.sleep(self.interval_s)

    def poll(self) -> None:
        """Publish the state now; a failure is logged and counted."""
        try:
            snapshot = self.read()
            self.metrics.publish(snapshot)
        except Exception:
            self.metrics.poll_failed()
            logger.exception("the engine's state cannot be read")
            return
        self.metrics.polled()
        if self.saturation.crossed(snapshot.pending):
            self._warn(snapshot)

    def _warn(self, snapshot: Snapshot) -> None:
        logger.warning(
            "saturated: more requests are pending than metrics.saturation_threshold",
            extra=fields(
                pending=snapshot.pending,
                running=snapshot.running,
                threshold=self.saturation.threshold,
                kv_cache_usage=round(snapshot.kv_cache_usage, 3),
            ),
        )
