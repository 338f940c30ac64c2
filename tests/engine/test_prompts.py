"""Which prompts are tokenized at once, and which by a thread."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.tokenizers.hf import ThreadSafeHFTokenizerMixin

from app.engine.prompts import SHORT, tokenize_short_ones_at_once


class Renderer(SimpleNamespace):
    """vLLM's, as far as it matters; it tells in which thread it tokenizes."""

    def __init__(self) -> None:
        super().__init__(
            going_on=threading.Event(), failing=False, tokenizer=ThreadSafeHFTokenizerMixin()
        )
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
    assert await renderer._tokenize_prompt_async(text("s", 1), None) == ("s", None, True)
    assert not long.done()
    renderer.going_on.set()
    assert await long == ("l", None, False)


async def test_tokenizers_that_are_not_for_two_threads_are_left_alone() -> None:
    renderer: Any = Renderer()
    renderer.tokenizer = object()
    tokenize_short_ones_at_once(renderer)
    assert await renderer._tokenize_prompt_async(text("s", 1), None) == ("s", None, False)


async def test_what_fails_is_over(renderer: Renderer) -> None:
    renderer.going_on.set()
    renderer.failing = True
    for length in (1, SHORT + 1):
        with pytest.raises(ValueError, match="a"):
            await renderer._tokenize_prompt_async(text("a", length), None)
    renderer.failing = False
    assert (await renderer._tokenize_prompt_async(text("a", 1), None))[2]


@pytest.mark.parametrize(("length", "at_once"), [(SHORT, 8), (300, 27), (1, 32), (0, 32)])
async def test_many_short_ones_together_are_a_long_one(
    length: int, at_once: int, renderer: Renderer
) -> None:
    renderer.going_on.set()
    together = [renderer._tokenize_prompt_async(text("a", length), None) for _ in range(100)]
    found = [here for _, _, here in await asyncio.gather(*together)]
    assert found == [True] * at_once + [False] * (100 - at_once)
    for _ in range(100):
        await asyncio.sleep(0)
        assert (await renderer._tokenize_prompt_async(text("a", SHORT), None))[2]
