"""Faults of vllm's engine client, caused underneath ours: real output, then an exception."""

import importlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest


@contextmanager
def failing(llm: Any, method: str, error: Exception, after: int) -> Iterator[None]:
    """Let each call of the engine raise `error` in place of its output number `after`.

    Output that is pushed is never an output of the call, so after as many tokens the collector
    gets the error, as it gets those of vllm's output loop: the call raises it then.

    Args:
        llm: the service's engine client; its base class is vllm's.
        method: `generate` or `encode`.
        error: what is raised.
        after: outputs of the real engine that come before.

    """
    base = type(llm).__base__
    original = getattr(base, method)
    pusher = importlib.import_module("app.engine.push").Pusher
    advance = pusher._advance

    def interrupted(self: Any, token_ids: list[int]) -> None:
        advance(self, token_ids)
        if self._dispatch.counted + len(self._pushed) - self._charged >= after:
            self._collector.put(error)

    async def faulty(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        count = 0
        async with aclosing(original(self, *args, **kwargs)) as outputs:
            async for output in outputs:
                if count == after:
                    break
                count += 1
                yield output
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, method, faulty)
        patch.setattr(pusher, "_advance", interrupted)
        yield


def dead() -> Exception:
    """What vllm raises once its engine has died."""
    error: Exception = importlib.import_module("vllm.v1.engine.exceptions").EngineDeadError()
    return error
