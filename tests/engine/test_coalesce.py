"""When texts are held back, and for how long."""

import asyncio
import time

from app.engine.coalesce import BUSY, CALM, HOLD_S, OVER_S, Coalescer


class Thread:
    """Two clocks: of the wall, and of the thread's work."""

    def __init__(self) -> None:
        self.now = self.worked = 100.0
        self.coalescer = Coalescer(lambda: self.now, lambda: self.worked)
        assert not self.coalescer.busy

    def passes(self, seconds: float, share: float) -> bool:
        """Whether it is busy after so much time, of which it works that share."""
        self.now += seconds
        self.worked += seconds * share
        return self.coalescer.busy


class Text:
    def __init__(self, obstacles: int = 0) -> None:
        self.flushed: list[float] = []
        self.obstacles = obstacles

    def flush(self) -> bool:
        self.flushed.append(time.monotonic())
        return len(self.flushed) > self.obstacles


def busy() -> Coalescer:
    thread = Thread()
    assert thread.passes(OVER_S, 1.0)
    return thread.coalescer


def test_it_is_busy_above_one_share_until_it_is_below_another() -> None:
    thread = Thread()
    assert not thread.passes(OVER_S, BUSY - 0.01)
    assert thread.passes(OVER_S, BUSY + 0.01)
    assert thread.passes(OVER_S, CALM + 0.01)
    assert not thread.passes(OVER_S, CALM - 0.01)
    assert not thread.passes(OVER_S, BUSY - 0.01)


def test_a_moment_says_nothing() -> None:
    thread = Thread()
    assert not thread.passes(OVER_S / 2, 1.0)
    assert thread.passes(OVER_S / 2, 1.0)
    assert not thread.passes(60.0, 0.01)


async def test_all_that_is_held_is_flushed_once_and_in_time() -> None:
    coalescer = busy()
    texts = [Text(), Text()]
    began = time.monotonic()
    assert all(coalescer.holds(text) for text in texts * 3)
    await asyncio.sleep(4 * HOLD_S)
    for text in texts:
        (at,) = text.flushed
        assert 0.9 * HOLD_S <= at - began < 3 * HOLD_S
    assert coalescer.holds(texts[0])
    await asyncio.sleep(4 * HOLD_S)
    assert [len(text.flushed) for text in texts] == [2, 1]


async def test_what_cannot_be_sent_is_tried_again() -> None:
    coalescer, text = busy(), Text(obstacles=2)
    assert coalescer.holds(text)
    await asyncio.sleep(5 * HOLD_S)
    assert len(text.flushed) == 3


async def test_it_holds_nothing_when_calm_or_off() -> None:
    thread = Thread()
    assert not thread.coalescer.holds(Text())
    coalescer = busy()
    coalescer.on = False
    assert not coalescer.holds(Text())
