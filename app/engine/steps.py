"""The last steps of the engines, one record each, for whoever wants to know how long steps take."""

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from app.workload import StepRecord

_LOGGER = "vllm.v1.metrics.loggers"
_LINE = "Iteration("


class StepLog:
    """A ring of records. To add one takes a look at each sequence in hand.

    Attributes:
        states: vllm's sequences in hand, once there is an engine.

    """

    def __init__(self, most: int) -> None:
        self.records: deque[StepRecord] = deque(maxlen=most)
        self.states: Mapping[str, Any] = {}

    def add(self, engine: int, at: float, stats: Any, iteration: Any) -> None:
        """What vllm's statistics say of a step; `iteration` is None where it made no token."""
        details = stats.iteration_details
        if details is None or details.is_dummy:
            return
        made = made_by(self.states, iteration)
        first = len(iteration.time_to_first_tokens_iter) if iteration else 0
        whole = (made.decodes, len(made.prompts)) == (details.num_generation_requests, first)
        self.records.append(
            StepRecord(
                at=at,
                engine=engine,
                prefill=details.num_ctx_tokens,
                decodes=details.num_generation_requests,
                context=made.context if whole else None,
                prompts=tuple(made.prompts),
                gap=min(iteration.inter_token_latencies_iter, default=None) if iteration else None,
                running=stats.num_running_reqs,
                waiting=stats.num_waiting_reqs + stats.num_skipped_waiting_reqs,
                preempted=iteration.num_preempted_reqs if iteration else 0,
                recomputed=details.num_generation_tokens - details.num_generation_requests,
            )
        )


class Made:
    """What the sequences of one step say of it.

    Attributes:
        prompts: of each that made its first token: its prompt's tokens, and those that were cached.
        decodes: those that made a further token.
        context: tokens that they had in the KV cache.

    """

    def __init__(self) -> None:
        self.prompts: list[tuple[int, int]] = []
        self.decodes = self.context = 0

    def add(self, produced: int, prompt: int, cached: int) -> None:
        if produced == 1:
            self.prompts.append((prompt, cached))
        else:
            self.decodes += 1
            self.context += prompt + produced - 2


def made_by(states: Mapping[str, Any], iteration: Any) -> Made:
    """The sequences in hand that were in the step that was reported last, and those it ended."""
    made = Made()
    if iteration is None:
        return made
    now = max((state.stats.last_token_ts for state in states.values()), default=0.0)
    for state in states.values():
        own = state.stats
        if own.last_token_ts == now and own.num_generation_tokens:
            made.add(own.num_generation_tokens, state.prompt_len, state.num_cached_tokens)
    for one in iteration.finished_requests:
        if one.num_generation_tokens:
            made.add(one.num_generation_tokens, one.num_prompt_tokens, one.num_cached_tokens)
    return made


def without_lines() -> None:
    """Have vllm not log each step, which it does once it is asked for the details of each."""
    logging.getLogger(_LOGGER).addFilter(lambda record: _LINE not in str(record.msg))
