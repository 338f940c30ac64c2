"""Fewer and larger chunks while the front end is busy."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

HOLD_S = 0.042
"""The longest that a text waits for more: it adds no gap of 50 ms to any stream."""
BUSY, CALM = 0.2, 0.05
"""Shares of its time that the event loop's thread works: above, texts are held; below, no longer.
Far apart, for holding halves the work."""
OVER_S = 0.25
"""How long a share is measured over."""


class Held(Protocol):
    """A text that waits."""

    def flush(self) -> bool:
        """Send it; false when that has to be tried again, or more will come that is held."""


class Coalescer:
    """Holds texts back for each other while the thread that it runs in is busy.

    Attributes:
        on: whether it holds anything at all.

    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.on = True
        self._clock, self._cpu_clock = clock, cpu_clock
        # Nothing is known before the first look, which may come from another thread than this.
        self._at, self._worked = 0.0, math.inf
        self._busy = False
        self._held: dict[Held, None] = {}

    def holds(self, text: Held) -> bool:
        """Whether a text is held; it is flushed `HOLD_S` after the first at the most."""
        if not self.holding:
            return False
        self._hold(text)
        return True

    @property
    def holding(self) -> bool:
        """Whether a text that came now would be held."""
        return self.on and self.busy

    def _hold(self, text: Held, since: float | None = None) -> None:
        if not self._held:
            loop = asyncio.get_running_loop()
            loop.call_at((loop.time() if since is None else since) + HOLD_S, self._flush)
        self._held[text] = None

    @property
    def busy(self) -> bool:
        """Whether the thread works for much of its time, as of a moment ago."""
        elapsed = (now := self._clock()) - self._at
        if elapsed >= OVER_S:
            worked = self._cpu_clock()
            self._busy = worked - self._worked > elapsed * (CALM if self._busy else BUSY)
            self._at, self._worked = now, worked
        return self._busy

    def _flush(self) -> None:
        held, self._held = self._held, {}
        began = asyncio.get_running_loop().time()
        for text in held:
            if not text.flush():
                self._hold(text, began)
