"""Which prompts are tokenized at once, and which by a thread."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.prompts import SHORT, TOGETHER, tokenize_short_ones_at_once


class Renderer(SimpleNamespace):
    """vLLM's, as far as it matters; it tells in which thread it tokenizes."""

    def __init__(self) -> None:
        super().__init__(going_on=threading.Event(), failing=False)
        self._tokenize_prompt_async = self._in_thread

    def _tokenize_prompt(self, prompt: dict[str, str], params: Any) -> tuple[str, Any, bool]:
        if len(prompt["prompt"]) > SHORT:
            self.going_on.wait(10)
        if self.failing:
            raise ValueError(prompt["prompt"])
        here = threading.current_thread() is threading.main_thread()
        return prompt["prompt"][:1], params, here

    async def _in_thread(self, prompt: dict[str, str], params: Any) -> tuple[str, Any, bool]:
        return await asyncio.to_thread(self._tokenize_prompt, prompt, params)


@pytest.fixture
def renderer() -> Renderer:
    made = Renderer()
    stand_in: Any = made
    tokenize_short_ones_at_once(stand_in)
    return made


def text(letter: str, length: int) -> dict[str, str]:
    return {"prompt": letter * length}


async def test_short_ones_at_once_and_long_ones_beside(renderer: Renderer) -> None:
    renderer.going_on.set()
    for length, at_once in ((1, True), (SHORT, True), (SHORT + 1, False), (1, True)):
        found = await renderer._tokenize_prompt_async(text("a", length), "p")
        assert found == ("a", "p", at_once)


async def test_a_long_one_holds_up_nobody(renderer: Renderer) -> None:
    long = asyncio.create_task(renderer._tokenize_prompt_async(text("l", SHORT + 1), None))
    await asyncio.sleep(0.05)
    # The tokenizer is taken: not here, and not after it either.
    assert await renderer._tokenize_prompt_async(text("s", 1), None) == ("s", None, False)
    assert not long.done()
    renderer.going_on.set()
    assert await long == ("l", None, False)
    assert (await renderer._tokenize_prompt_async(text("s", 1), None))[2]


async def test_what_fails_is_over(renderer: Renderer) -> None:
    renderer.going_on.set()
    renderer.failing = True
    for length in (1, SHORT + 1):
        with pytest.raises(ValueError, match="a"):
            await renderer._tokenize_prompt_async(text("a", length), None)
    renderer.failing = False
    assert (await renderer._tokenize_prompt_async(text("a", 1), None))[2]


async def test_many_short_ones_together_are_a_long_one(renderer: Renderer) -> None:
    renderer.going_on.set()
    together = [renderer._tokenize_prompt_async(text("a", SHORT), None) for _ in range(100)]
    found = [at_once for _, _, at_once in await asyncio.gather(*together)]
    assert found == [True] * (TOGETHER // SHORT) + [False] * (100 - TOGETHER // SHORT)
    for _ in range(100):
        await asyncio.sleep(0)
        assert (await renderer._tokenize_prompt_async(text("a", SHORT), None))[2]
