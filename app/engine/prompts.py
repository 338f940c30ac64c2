"""Where prompts are tokenized: the short ones at once, the long ones beside the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from vllm.renderers.base import BaseRenderer

SHORT = 1_024
"""Characters, which take a fifth of a millisecond: to hand them to a thread and back costs as much
again, and waiting for the thread's turn takes longer."""
TOGETHER = 8 * SHORT
"""Characters of all that come in one turn of the event loop, for what is an array of short ones."""


def tokenize_short_ones_at_once(renderer: BaseRenderer) -> None:
    """Change a renderer so; until now it hands each prompt to its threads."""
    renderer._tokenize_prompt_async = _Tokenizing(
        renderer._tokenize_prompt, renderer._tokenize_prompt_async
    )


class _Tokenizing:
    def __init__(
        self, at_once: Callable[..., Any], in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        self._at_once = at_once
        self._in_thread = in_thread
        self._in_threads = 0
        self._characters = 0  # that were tokenized in this turn of the event loop

    async def __call__(self, prompt: Any, params: Any) -> Any:
        # While a thread has the tokenizer, vLLM would make a copy of it, which takes long.
        if not self._in_threads and self._is_short(len(prompt["prompt"])):
            return self._at_once(prompt, params)
        self._in_threads += 1
        try:
            return await self._in_thread(prompt, params)
        finally:
            self._in_threads -= 1

    def _is_short(self, characters: int) -> bool:
        if characters > SHORT or self._characters + characters > TOGETHER:
            return False
        if not self._characters:
            asyncio.get_running_loop().call_soon(self._turn)
        self._characters += characters
        return True

    def _turn(self) -> None:
        self._characters = 0
