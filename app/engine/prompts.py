"""Where prompts are tokenized: the short ones at once, the long ones beside the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from vllm.renderers.base import BaseRenderer
from vllm.tokenizers.hf import ThreadSafeHFTokenizerMixin

SHORT = 1_024
"""Characters, which take a fifth of a millisecond: to hand them to a thread and back costs as much
again, and waiting for the thread's turn takes longer."""
LEAST = 256
"""Characters that even an empty prompt counts for: a call takes some 30 µs."""
TOGETHER = 8 * SHORT
"""Characters of all that come in one turn of the event loop, for what is an array of short ones."""


def tokenize_short_ones_at_once(renderer: BaseRenderer) -> None:
    """Change a renderer so; until now it hands each prompt to its threads.

    Only where vLLM keeps one copy of its tokenizer more than it has threads; other tokenizers are
    not for two threads, or slow.
    """
    if isinstance(renderer.tokenizer, ThreadSafeHFTokenizerMixin):
        renderer._tokenize_prompt_async = _Tokenizing(
            renderer._tokenize_prompt, renderer._tokenize_prompt_async
        )


class _Tokenizing:
    def __init__(
        self, at_once: Callable[..., Any], in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        self._at_once = at_once
        self._in_thread = in_thread
        self._characters = 0  # that were tokenized in this turn of the event loop

    async def __call__(self, prompt: Any, params: Any) -> Any:
        if self._is_short(max(LEAST, len(prompt["prompt"]))):
            return self._at_once(prompt, params)
        return await self._in_thread(prompt, params)

    def _is_short(self, characters: int) -> bool:
        if characters > SHORT or self._characters + characters > TOGETHER:
            return False
        if not self._characters:
            asyncio.get_running_loop().call_soon(self._turn)
        self._characters += characters
        return True

    def _turn(self) -> None:
        self._characters = 0
