"""Batching in its simplest form: slots, one token a step for each sequence that is in one.

Both schedulers differ in one predicate: whether a free slot may be filled now.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

EOS = -1
"""What a forward pass yields for a sequence that ends by itself."""

Finish: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        name: for the picture.
        max_tokens: a sequence that has so many ends, whatever comes last.

    """

    name: str
    max_tokens: int


@dataclass(eq=False)
class Active:
    """A request in a slot. Steps are counted from 0; the first token comes in step `since`."""

    request: Request
    slot: int
    since: int
    tokens: list[int] = field(default_factory=list)

    def finish(self, eos: int) -> Finish | None:
        """Why it has ended; None while it goes on."""
        if self.tokens and self.tokens[-1] == eos:
            return "stop"
        return "length" if len(self.tokens) >= self.request.max_tokens else None


@dataclass(frozen=True)
class Result:
    """A sequence that was evicted: in its slot in the steps [since, until)."""

    request: Request
    slot: int
    since: int
    until: int
    tokens: tuple[int, ...]
    finish: Finish


Forward: TypeAlias = Callable[[Sequence[Active]], Sequence[int]]
"""One pass of the model over the active batch: the next token of each."""


class BatchingScheduler(ABC):
    """A queue, a batch of slots, and the loop over both.

    Args:
        max_batch_size: slots.
        forward: the model.
        eos: the token that ends a sequence.

    """

    def __init__(self, max_batch_size: int, forward: Forward, eos: int = EOS) -> None:
        if max_batch_size < 1:
            raise ValueError(f"a batch has at least one slot, not {max_batch_size}")
        self.waiting: deque[Request] = deque()
        self.slots: list[Active | None] = [None] * max_batch_size
        self.steps = 0
        self._forward = forward
        self._eos = eos

    @property
    def active(self) -> list[Active]:
        """The batch, in the order of its slots."""
        return [sequence for sequence in self.slots if sequence is not None]

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.active

    def submit(self, request: Request) -> None:
        """Let a request wait for a slot."""
        if request.max_tokens < 1:
            raise ValueError(f"{request.name}: at least one token has to be asked for")
        self.waiting.append(request)

    def step(self) -> list[Result]:
        """After each forward pass: evict, inject, run the next one; what was evicted."""
        results = self.evict()
        self.inject()
        self._run()
        return results

    def evict(self) -> list[Result]:
        """Take those out that have ended."""
        results = []
        for sequence in self.active:
            finish = sequence.finish(self._eos)
            if finish is not None:
                self.slots[sequence.slot] = None
                results.append(self._result(sequence, finish))
        return results

    def inject(self) -> None:
        """Fill the free slots from the queue, where that is allowed."""
        if not self._may_inject():
            return
        for slot, sequence in enumerate(self.slots):
            if sequence is None and self.waiting:
                self.slots[slot] = Active(self.waiting.popleft(), slot, self.steps)

    @abstractmethod
    def _may_inject(self) -> bool:
        """Whether free slots may be filled in this step."""

    def _run(self) -> None:
        batch = self.active
        if not batch:
            return
        for sequence, token in zip(batch, self._forward(batch), strict=True):
            sequence.tokens.append(token)
        self.steps += 1

    def _result(self, sequence: Active, finish: Finish) -> Result:
        return Result(
            sequence.request,
            sequence.slot,
            sequence.since,
            self.steps,
            tuple(sequence.tokens),
            finish,
        )


class ContinuousBatchingScheduler(BatchingScheduler):
    """A slot that is free is filled before the next pass."""

    def _may_inject(self) -> bool:
        return True


class StaticBatchingScheduler(BatchingScheduler):
    """A batch is formed, and nobody joins it until its longest member has ended."""

    def _may_inject(self) -> bool:
        return not self.active


def drain(scheduler: BatchingScheduler) -> list[Result]:
    """Step until nothing is left; all results in the order of their ends."""
    results = []
    while not scheduler.idle:
        results += scheduler.step()
    return results


@dataclass(frozen=True)
class Script:
    """A forward pass without a model: each request's tokens are 0, and EOS as the last of them.

    Attributes:
        lengths: tokens of each request by its name, EOS among them.

    """

    lengths: dict[str, int]

    def __call__(self, batch: Sequence[Active]) -> list[int]:
        return [
            EOS if len(one.tokens) + 1 == self.lengths[one.request.name] else 0 for one in batch
        ]
