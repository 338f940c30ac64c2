"""Ends a request's work as soon as its client goes away, or is to be told something else."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from app.api.push import Outlet
from app.errors import ClientDisconnected

T = TypeVar("T")


class Client(Outlet, Protocol):
    """The client's side of an answer that is under way."""

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Have the event loop call it if the client goes away before it has its whole answer."""


async def unless_disconnected(
    client: Client, work: Coroutine[Any, Any, T], lost: "asyncio.Future[None]"
) -> T:
    """Run `work`, whose request body has been read, and cancel it when the client leaves.

    It runs in the current task: most requests are not interrupted, and a task for each, with one
    that watches it, costs more than the rest of what we do for it.

    Args:
        client: who asked.
        work: what it asked for.
        lost: fails when the work is not to be done any more, or was not to be begun; the reason is
            raised.

    Raises:
        ClientDisconnected: it left; `work` has ended before this is raised.

    """
    if lost.done():
        work.close()
        lost.result()
    task = asyncio.current_task()
    assert task is not None
    interrupt, cancelled = _Interrupt(task), task.cancelling()
    lost.add_done_callback(interrupt.lost)
    client.on_lost(interrupt.gone)
    try:
        return await work
    except (Exception, asyncio.CancelledError):
        if interrupt.reason is None:
            raise
        raise interrupt.reason from None
    finally:
        interrupt.end()
        client.on_lost(None)
        lost.remove_done_callback(interrupt.lost)
        if task.cancelling() > cancelled:
            # By somebody else, and vllm's handlers make an answer of that.
            raise asyncio.CancelledError


class _Interrupt:
    """Cancels a task, at most once, for a reason.

    It is called from the event loop and never by the task itself, so the task waits for something
    in its work, which is what is cancelled.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.reason: BaseException | None = None
        self._task: asyncio.Task[Any] | None = task

    def gone(self) -> None:
        self._stop(ClientDisconnected())

    def lost(self, lost: "asyncio.Future[None]") -> None:
        if not lost.cancelled():
            self._stop(lost.exception())

    def _stop(self, reason: BaseException | None) -> None:
        if self._task is not None and self.reason is None:
            self.reason = reason
            self._task.cancel()

    def end(self) -> None:
        """Whatever comes now comes too late."""
        if self.reason is not None and self._task is not None:
            self._task.uncancel()
        self._task = None
