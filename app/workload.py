"""What the engine can hold and what it holds, in the units of admission."""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Capacity:
    """All engines together.

    Attributes:
        slots: sequences in a batch.
        step_tokens: tokens in one step.
        kv_tokens: tokens that the KV cache has room for; 0: not known, or there is none.
        kv_block: tokens of a block; a sequence holds whole blocks.
        engines: how many there are; each has a queue of its own.

    """

    slots: int
    step_tokens: int
    kv_tokens: int = 0
    kv_block: int = 1
    engines: int = 1


@dataclass(frozen=True)
class DecodingStats:
    """All engines together, by their latest reports.

    Attributes:
        inside: unfinished sequences that the engines have been given.
        running: of those, the ones in a batch.
        waiting: in the engines' own queues at their last step.
        deferred: there too, but for a reason of their own (an adapter that is not loaded, a grammar
            that is being compiled); others may pass them.
        kv_cache_usage: share of the KV cache, 0 to 1.
        preempted: a sequence was taken out of a batch for want of KV cache, and the queue that it
            went to has not been empty since.

    """

    inside: int = 0
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_cache_usage: float = 0.0
    preempted: bool = False

    @property
    def unstarted(self) -> int:
        """Sequences inside that are in no batch and could be, as far as is known."""
        return max(0, self.inside - self.running - self.deferred)


@dataclass(frozen=True)
class InHand:
    """What one engine has been given and has not finished, and when it last made a step.

    Attributes:
        sequences: unfinished.
        last_step_at: monotonic seconds; None before the first.

    """

    sequences: int
    last_step_at: float | None = None


@dataclass(frozen=True)
class Step:
    """One engine's report of one step.

    Attributes:
        engine: its index.
        at: monotonic seconds.
        running: sequences in its batch after the step.
        generated: output tokens that the step made.

    """

    engine: int
    at: float
    running: int
    generated: int


class StepRecord(msgspec.Struct, frozen=True, gc=False):
    """What one step computed and how long it took, as the engine's statistics tell it.

    Some 250 bytes. Many are kept, and the garbage collector does not look at them: a thousand would
    hold the event loop for half a millisecond.

    Attributes:
        at: monotonic seconds at which it was told.
        engine: its index.
        prefill: tokens of prompts that were computed.
        decodes: sequences that made a further token.
        context: tokens that those had in the KV cache; None: not all of them are known any more.
        prompts: of each prompt that became complete: its tokens, and how many of them were cached.
        gap: since the step before, by the engine's clock, where a sequence decoded in both.
        running: sequences in the batch after it.
        waiting: in the engine's queue after it.
        preempted: sequences that lost their place before it.
        recomputed: tokens beyond one for each sequence that decoded: answers that were preempted
            and are computed again, or tokens that were guessed.

    """

    at: float
    engine: int
    prefill: int
    decodes: int
    context: int | None
    prompts: tuple[tuple[int, int], ...]
    gap: float | None
    running: int
    waiting: int
    preempted: int
    recomputed: int
