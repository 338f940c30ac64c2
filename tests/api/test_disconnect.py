"""How work is cut short, without a server: the client's side and the ledger's are stand-ins."""

import asyncio
from collections.abc import Callable

import pytest

from app.api.disconnect import unless_disconnected
from app.errors import ClientDisconnected, Draining


class Client:
    """An outlet that tells when it is told to."""

    free = False
    callback: Callable[[], None] | None = None

    def write(self, body: bytes) -> None:
        raise AssertionError

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        self.callback = callback

    def leaves(self) -> None:
        assert self.callback is not None
        asyncio.get_running_loop().call_soon(self.callback)


class Work:
    """Waits until it is cancelled, and ends when it may; what it does then is chosen."""

    def __init__(self, then: BaseException | None = None) -> None:
        self.then = then
        self.over = False
        self.ending, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

    async def do(self) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            await self.may_end.wait()
            self.over = True
            if self.then is not None:
                raise self.then
        raise AssertionError


async def swallowing() -> str:
    """As vllm's handlers do."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "client disconnected"
    raise AssertionError


@pytest.fixture
async def lost() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


async def is_not_cancelled() -> None:
    """The task goes on as if nothing had been."""
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_what_is_not_interrupted_has_its_result(lost: "asyncio.Future[None]") -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    client = Client()
    assert await unless_disconnected(client, work(), lost) == 7
    assert client.callback is None
    lost.set_exception(Draining("late"))
    await is_not_cancelled()


@pytest.mark.parametrize("then", [None, RuntimeError("on its way out")])
async def test_a_client_that_leaves_ends_the_work_first(
    lost: "asyncio.Future[None]", then: Exception | None
) -> None:
    client, work = Client(), Work(then)
    asyncio.get_running_loop().call_soon(client.leaves)
    with pytest.raises(ClientDisconnected):
        await unless_disconnected(client, work.do(), lost)
    assert work.over
    await is_not_cancelled()


async def test_the_first_reason_counts(lost: "asyncio.Future[None]") -> None:
    client, work = Client(), Work()
    work.may_end.clear()
    task = asyncio.create_task(unless_disconnected(client, work.do(), lost))
    await asyncio.sleep(0)
    lost.set_exception(Draining("it stops"))
    await work.ending.wait()
    client.leaves()
    await asyncio.sleep(0)
    assert not work.over
    work.may_end.set()
    with pytest.raises(Draining, match="it stops"):
        await task
    assert work.over


async def test_a_cancellation_of_the_task_comes_through_whatever_the_work_makes_of_it(
    lost: "asyncio.Future[None]",
) -> None:
    task = asyncio.create_task(unless_disconnected(Client(), swallowing(), lost))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_that_swallows_it_when_the_client_leaves(lost: "asyncio.Future[None]") -> None:
    client = Client()
    asyncio.get_running_loop().call_soon(client.leaves)
    assert await unless_disconnected(client, swallowing(), lost) == "client disconnected"
    await is_not_cancelled()


async def test_what_is_lost_before_it_begins_does_not_begin(lost: "asyncio.Future[None]") -> None:
    lost.set_exception(Draining("it stops"))
    work = Work()
    with pytest.raises(Draining):
        await unless_disconnected(Client(), work.do(), lost)
    assert not work.over


async def test_a_failure_of_its_own_is_raised(lost: "asyncio.Future[None]") -> None:
    async def work() -> None:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        await unless_disconnected(Client(), work(), lost)


async def test_it_is_cancelled_with_its_task(lost: "asyncio.Future[None]") -> None:
    work = Work()
    task = asyncio.create_task(unless_disconnected(Client(), work.do(), lost))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.over
