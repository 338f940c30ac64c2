"""Uploads that are slow, or that end too early."""

import asyncio
import json

from tests.api.conftest import BODY_TIMEOUT_S
from tests.rig.inprocess import InProcess
from tests.rig.raw import Connection, connect, post_head
from tests.rig.routes import COMPLETIONS
from tests.rig.service import until

PATH = COMPLETIONS.path
CONTENT = json.dumps(COMPLETIONS.body(tokens=2)).encode()


async def dribble(connection: Connection, data: bytes) -> None:
    """A byte now and then: the connection is never idle for long."""
    for number in range(len(data)):
        await connection.send(data[number : number + 1])
        await asyncio.sleep(BODY_TIMEOUT_S / 10)


async def assert_timed_out(connection: Connection) -> None:
    status, headers = await asyncio.wait_for(connection.head(), 10 * BODY_TIMEOUT_S)
    assert status == 408
    assert headers["connection"] == "close"
    assert headers["x-request-id"]
    error = json.loads(await asyncio.wait_for(connection.rest(), 10 * BODY_TIMEOUT_S))["error"]
    assert error["code"] == "request_timeout"


async def test_an_upload_that_stops_is_ended(inside: InProcess) -> None:
    async with connect(inside) as connection:
        await connection.send(post_head(PATH, len(CONTENT)) + CONTENT[:-1])
        await assert_timed_out(connection)
    assert inside.ledger.unfinished == 0


async def test_an_upload_that_dribbles_is_ended(inside: InProcess) -> None:
    async with connect(inside) as connection:
        await connection.send(post_head(PATH, len(CONTENT)))
        sending = asyncio.create_task(dribble(connection, CONTENT))
        try:
            await assert_timed_out(connection)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def test_an_upload_without_a_length_is_ended(inside: InProcess) -> None:
    head = post_head(PATH, 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    async with connect(inside) as connection:
        await connection.send(head + b"5\r\n" + CONTENT[:5] + b"\r\n")
        await assert_timed_out(connection)


async def test_an_upload_in_pieces_is_read(inside: InProcess) -> None:
    async with connect(inside) as connection:
        await connection.send(post_head(PATH, len(CONTENT)) + CONTENT[:10])
        await asyncio.sleep(BODY_TIMEOUT_S / 10)
        await connection.send(CONTENT[10:])
        status, _ = await connection.head()
    assert status == 200


async def test_a_disconnect_during_an_upload_leaves_nothing(inside: InProcess) -> None:
    def left() -> float:
        name, labels = "tidegate_requests_total", {"route": "completions", "status": "499"}
        try:
            return inside.metric(name, **labels)
        except KeyError:
            return 0.0

    before = left()
    for reset in (False, True):
        async with connect(inside) as connection:
            await connection.send(post_head(PATH, len(CONTENT)) + CONTENT[:10])
            await asyncio.sleep(0.1)
            await connection.close(reset=reset)
    await until(lambda: left() == before + 2)
    assert inside.metric("vllm_pending_requests") == 0
    assert not inside.ledger.permits
    answer = inside.client().post(PATH, content=CONTENT, headers={"content-type": "text/json+json"})
    assert answer.status_code == 200
