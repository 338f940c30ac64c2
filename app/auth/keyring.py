"""The keys in force, kept up to date with their file while the service runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from app.auth.file import parse, read
from app.auth.keys import Key, Ring
from app.settings import SettingsError

logger = logging.getLogger(__name__)

# Contract: a change is in force within 10 s.
RELOAD_S: Final = 2.0

InThread = Callable[[Callable[[], Ring | None]], Awaitable[Ring | None]]


class Keyring:
    """The keys of one file. What is wrong with it later leaves those in force that were.

    Raises:
        SettingsError: the file is not usable at the start.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = read(path)
        self.ring = parse(self._text, path)
        self._problem: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the file, as it is now, could not be taken over."""
        return self._problem is not None

    async def watch(self, in_thread: InThread, interval_s: float = RELOAD_S) -> None:
        """Look at the file until cancelled.

        By its content: Kubernetes swaps a mounted Secret by a link in a directory above it, and
        times and sizes may stay the same.

        Args:
            in_thread: runs what blocks; a file system may hang.
            interval_s: from one look to the next.

        """
        while True:
            await asyncio.sleep(interval_s)
            try:
                self._take(await in_thread(self._look))
            except SettingsError as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001 - nobody would see that reloading has ended
                self._fail(f"{self.path}: {type(error).__name__}")

    def _look(self) -> Ring | None:
        """The file's keys; None when it is what it was when the ring was made."""
        text = read(self.path)
        if text == self._text:
            return None
        ring = parse(text, self.path)
        self._text = text
        return ring

    def _take(self, ring: Ring | None) -> None:
        if ring is not None:
            logger.info("keys file reloaded: %s", changes(self.ring, ring))
            self.ring = ring
        elif self._problem is not None:
            logger.info("keys file mended: it is again what it was")
        self._problem = None

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            logger.error("keys file not usable, the old keys stay in force: %s", problem)
        self._problem = problem


def changes(old: Ring, new: Ring) -> str:
    """What is different, in numbers of keys."""
    before, after = _by_name(old), _by_name(new)
    both = before.keys() & after.keys()
    changed = sum(before[name] != after[name] for name in both)
    return (
        f"{len(after) - len(both)} added, {len(before) - len(both)} removed, {changed} changed, "
        f"{len(after)} in force"
    )


def _by_name(ring: Ring) -> dict[str, Key]:
    return {key.name: key for key in ring.keys}
