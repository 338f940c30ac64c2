"""A stop, with real signals: what is in flight ends properly, and no process is left."""

import asyncio
import signal

import pytest

from tests.conftest import StartService
from tests.rig.service import Service, hold


@pytest.fixture
def service(start_service: StartService) -> Service:
    return start_service(engine__max_model_len=4096)


@pytest.mark.parametrize(
    ("number", "to_group"),
    [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)],
    ids=["kubernetes", "ctrl-c", "systemd"],
)
async def test_streams_end_properly_and_nothing_is_left(
    service: Service, number: signal.Signals, to_group: bool
) -> None:
    async with hold(service, 2, max_tokens=600) as streams:
        if to_group:
            service.signal_group(number)
        else:
            service.process.send_signal(number)
        await streams.finish()
        assert [stream.complete for stream in streams] == [True, True]
        assert [stream.events()[-1]["choices"][0]["finish_reason"] for stream in streams] == [
            "length",
            "length",
        ]
    assert await asyncio.to_thread(service.wait, 60) == 0
    assert service.left_after(10) == []
    assert "Traceback" not in service.log_text()
