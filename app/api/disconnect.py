"""Ends a request's work as soon as its client goes away."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from app.errors import ClientDisconnected

T = TypeVar("T")


async def unless_disconnected(
    receive: Receive, work: Coroutine[Any, Any, T], lost: "asyncio.Future[None]"
) -> T:
    """Run `work`, whose request body has been read, and cancel it when the client leaves.

    Args:
        receive: the client's side.
        work: what it asked for.
        lost: fails when the work is not to be done any more, or was not to be begun; the reason is
            raised.

    Raises:
        ClientDisconnected: it left; `work` has ended before this is raised.

    """
    if lost.done():
        work.close()
        lost.result()
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, watch, lost), return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            lost.result()
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        await _cancel(task, watch)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
