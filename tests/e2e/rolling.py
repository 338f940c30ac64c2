"""A rolling restart under load: `python -m tests.e2e.rolling [--direct]`.

Two instances serve streams at a constant rate while each in turn is told to end (SIGTERM, as
Kubernetes does) and started again. Nothing may fail, and nothing may be cut: the status is 1
otherwise. In front of them is HAProxy, with clients that never retry; with `--direct` there is
nothing, and the `openai` client, with its default retries and one pool of kept connections for each
instance, sends to those that say they are ready.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from openai import AsyncOpenAI

from loadtest.tiny_model import build_model
from tests.rig.haproxy import HAProxy
from tests.rig.server import Server
from tests.rig.service import Service, tiny_settings

TOKENS = 64
PROBE_S = 0.5
BALANCED_S = 2.0


@dataclass
class Tally:
    """What became of the requests; seconds."""

    ends: Counter[str] = field(default_factory=Counter)
    durations: list[float] = field(default_factory=list)

    def add(self, end: str, duration: float) -> None:
        self.ends[end] += 1
        self.durations.append(duration)

    @property
    def failed(self) -> int:
        return self.ends.total() - self.ends["complete"]


async def stream(client: AsyncOpenAI) -> str:
    """How one stream ends: `complete`, or what was wrong with it."""
    tokens, reason = 0, None
    try:
        chunks = await client.completions.create(
            model="tiny",
            prompt="hello",
            max_tokens=TOKENS,
            stream=True,
            extra_body={"ignore_eos": True, "stream_options": {"include_usage": True}},
        )
        async for chunk in chunks:
            reason = chunk.choices[0].finish_reason if chunk.choices else reason
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    except Exception as error:  # noqa: BLE001 - each is a failure, and is told
        cause = error.__cause__ or error
        return f"{type(error).__name__}: {cause}"[:120]
    return "complete" if (reason, tokens) == ("length", TOKENS) else f"cut: {reason}, {tokens}"


async def send(choose: Callable[[], AsyncOpenAI], rate: float, count: int, tally: Tally) -> None:
    """Send `count` requests, `rate` a second, whatever becomes of them."""

    async def one() -> None:
        began = time.monotonic()
        end = await stream(choose())
        tally.add(end, time.monotonic() - began)

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one())


async def restart(service: Service) -> None:
    """One instance: told to end, ended, started again, ready."""
    began = time.monotonic()
    status = await asyncio.to_thread(service.terminate, 130)
    ended = time.monotonic()
    service.start()
    await asyncio.to_thread(service.wait_ready)
    ready = time.monotonic()
    print(f"  ended with {status} in {ended - began:.1f} s, ready {ready - ended:.1f} s later")
    if status != 0:
        raise SystemExit(f"exit status {status}")
    await asyncio.sleep(BALANCED_S)


@asynccontextmanager
async def balanced(
    services: Sequence[Service], directory: Path
) -> AsyncIterator[Callable[[], AsyncOpenAI]]:
    """One client before HAProxy, which does the choosing."""
    with HAProxy(services, directory) as proxy:
        async with pooled(proxy, max_retries=0) as client:
            await asyncio.sleep(BALANCED_S)
            yield lambda: client


@asynccontextmanager
async def direct(services: Sequence[Service], _: Path) -> AsyncIterator[Callable[[], AsyncOpenAI]]:
    """One client for each instance, in turn those whose instance was ready when last asked."""
    clients = [pooled(service) for service in services]
    ready = [True] * len(services)
    turn = itertools.cycle(range(len(services)))

    def choose() -> AsyncOpenAI:
        in_turn = itertools.islice(turn, 2 * len(clients))
        return next((clients[i] for i in in_turn if ready[i]), clients[0])

    async def watch(number: int) -> None:
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as probe:
            while True:
                try:
                    answer = await probe.get(services[number].ready_url)
                    ready[number] = answer.status_code == httpx.codes.OK
                except httpx.TransportError:
                    ready[number] = False
                await asyncio.sleep(PROBE_S)

    watches = [asyncio.create_task(watch(number)) for number in range(len(services))]
    try:
        yield choose
    finally:
        for task in watches:
            task.cancel()
        for client in clients:
            await client.close()


def pooled(server: Server, max_retries: int = 2) -> AsyncOpenAI:
    """A client that keeps its connections; 2 retries are its own default."""
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=max_retries)


async def roll(options: argparse.Namespace, services: Sequence[Service], directory: Path) -> Tally:
    """Send the load and restart each instance under it."""
    tally = Tally()
    way = direct if options.direct else balanced
    async with way(services, directory) as choose:
        load = asyncio.create_task(send(choose, options.rate, options.requests, tally))
        await asyncio.sleep(BALANCED_S)
        for service in services:
            await restart(service)
        if load.done():
            raise SystemExit("the load ended before the restarts did: ask for more --requests")
        await load
    return tally


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.rolling", description=__doc__)
    parser.add_argument("--direct", action="store_true", help="no balancer")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=20.0, help="requests/s")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = build_model(directory / "model")
        settings = tiny_settings(model) | {"engine.max_num_seqs": 16}
        services = [
            stack.enter_context(Service(settings, directory / f"log-{number}"))
            for number in range(2)
        ]
        tally = asyncio.run(roll(options, services, directory))
    durations = sorted(tally.durations)
    print(f"{tally.ends.total()} requests at {options.rate:g}/s, {tally.failed} failed or cut")
    print(f"durations: p50 {durations[len(durations) // 2]:.2f} s, longest {durations[-1]:.2f} s")
    for end, count in tally.ends.most_common():
        print(f"  {count:6d} {end}")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
