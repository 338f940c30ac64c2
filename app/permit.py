"""Permits: what one HTTP request holds of the engine, and the ledger that counts them all.

A permit is opened by the route for m×n sequences and travels in a context variable. The engine
client opens one dispatch under it for each call of the engine, and writes down on the permit
what the route cannot learn otherwise: the first output and the first failure. At every moment

    accepted − finished = pending + running

holds in sequences, because all four are derived from what is written here.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from app.errors import ClientDisconnected, TidegateError

current_permit: ContextVar["Permit | None"] = ContextVar("current_permit", default=None)


class Observer(Protocol):
    """Told of each acceptance and each end, in sequences."""

    def sequences_accepted(self, route: str, sequences: int) -> None: ...

    def sequences_finished(self, route: str, reason: str, sequences: int) -> None: ...

    def inter_token(self, route: str, seconds: float) -> None: ...


def _nothing() -> None:
    """How a call is aborted that the engine does not know."""


class Dispatch:
    """One call of the engine: `live` sequences still in it, each with `tokens` prompt tokens.

    Attributes:
        abort: makes the engine forget the sequences that are still live.

    """

    def __init__(
        self, permit: "Permit", sequences: int, tokens: int, abort: Callable[[], None]
    ) -> None:
        self.permit = permit
        self.live = sequences
        self.tokens = tokens
        self.abort = abort

    def end(self, reason: str, sequences: int = 1) -> None:
        """Note that the engine finished some of the sequences for `reason`."""
        if ended := min(sequences, self.live):
            self.live -= ended
            self.permit.end(reason, ended)


class Permit:
    """One HTTP request's share of the engine. All times are seconds on the ledger's clock."""

    def __init__(
        self, ledger: "Ledger", route: str, sequences: int, estimate: int, nested: bool
    ) -> None:
        self.ledger = ledger
        self.route = route
        self.sequences = sequences
        self.estimate = estimate
        self.nested = nested
        self.accepted_at = ledger.clock()
        self.handed_after_s: float | None = None
        self.queue_wait_s: float | None = None
        self.ttft_s: float | None = None
        self.failure: TidegateError | None = None
        self.max_tokens: int | None = None
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.finish_reason: str | None = None
        self.ended = 0
        self.dispatched = 0
        self.live = 0
        self.open: dict[Dispatch, None] = {}

    @property
    def started(self) -> bool:
        """Whether the answer's status is known: there is an output or a failure."""
        return self.ttft_s is not None or self.failure is not None

    @property
    def unfinished(self) -> int:
        return self.sequences - self.ended

    @property
    def undispatched(self) -> int:
        """Sequences that the engine has not been handed yet."""
        if self.nested:
            return 0 if self.dispatched else self.sequences
        return max(0, self.sequences - self.dispatched)

    def output(self) -> None:
        """Note the first output; later ones change nothing."""
        if self.ttft_s is None:
            self.ttft_s = self.ledger.clock() - self.accepted_at

    def fail(self, error: TidegateError) -> None:
        """Note the first failure: what follows from it (aborts of siblings) is not the cause."""
        if self.failure is None:
            self.failure = error

    def end(self, reason: str, sequences: int) -> None:
        self.live -= sequences
        self.finish_reason = reason
        if not self.nested:
            self._finish(reason, sequences)

    def close(self) -> None:
        """End what is left: sequences that never ran, that failed, or that nobody waits for.

        A call that failed may be kept alive for long by the traceback of its error, so its
        sequences are taken from the engine here and not when it is collected.
        """
        for dispatch in list(self.open):
            self._release(dispatch)
        if self.unfinished:
            if not self.nested or self.finish_reason is None or self.failure is not None:
                self.finish_reason = self._remainder()
            self._finish(self.finish_reason, self.unfinished)

    def _remainder(self) -> str:
        if self.failure is None or self.failure.status == ClientDisconnected.status:
            return "aborted"
        return "error" if self.failure.status >= 500 else "invalid"

    def _finish(self, reason: str, sequences: int) -> None:
        ended = min(sequences, self.unfinished)
        if ended:
            self.ended += ended
            self.ledger.finish(self.route, reason, ended)

    @contextmanager
    def dispatch(
        self, sequences: int, tokens: int, abort: Callable[[], None] = _nothing
    ) -> Iterator[Dispatch]:
        """Hold `sequences` of the engine, in the order in which they were handed over.

        Those that are live at the end, or when the permit is closed, are aborted.
        """
        dispatch = Dispatch(self, sequences, tokens, abort)
        if self.handed_after_s is None:
            self.handed_after_s = self.ledger.clock() - self.accepted_at
        self.ledger.dispatches[dispatch] = None
        self.open[dispatch] = None
        self.dispatched += sequences
        self.live += sequences
        self.prompt_tokens += tokens
        try:
            yield dispatch
        finally:
            self._release(dispatch)

    def _release(self, dispatch: Dispatch) -> None:
        """Take a call's sequences back from the engine; a second time changes nothing."""
        if dispatch in self.open:
            del self.open[dispatch], self.ledger.dispatches[dispatch]
            self.live -= dispatch.live
            if dispatch.live:
                dispatch.abort()


class Ledger:
    """Counts sequences from acceptance to their end. Lives on one event loop, takes no locks."""

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self.observer = observer
        self.clock = clock
        self.unfinished = 0
        self.permits: dict[Permit, None] = {}
        self.dispatches: dict[Dispatch, None] = {}

    @contextmanager
    def permit(
        self, route: str, sequences: int, estimate: int = 0, *, nested: bool = False
    ) -> Iterator[Permit]:
        """Accept a request.

        Args:
            route: the label under which it is counted.
            sequences: m prompts × n samples (a beam's width); 0 when the engine is not needed.
            estimate: prompt tokens of the whole request, as good as known before tokenising.
            nested: the engine is called several times for one sequence (tool turns, beams), so
                sequences end with the request and not with a call.

        """
        permit = Permit(self, route, sequences, estimate, nested)
        if sequences:
            self.observer.sequences_accepted(route, sequences)
            self.unfinished += sequences
        self.permits[permit] = None
        token = current_permit.set(permit)
        try:
            yield permit
        finally:
            current_permit.reset(token)
            permit.close()
            del self.permits[permit]

    def finish(self, route: str, reason: str, sequences: int) -> None:
        self.unfinished -= sequences
        self.observer.sequences_finished(route, reason, sequences)

    @property
    def handed(self) -> int:
        """Unfinished sequences that the engine has."""
        return min(self.unfinished, sum(dispatch.live for dispatch in self.dispatches))

    def pending_tokens(self, pending: int) -> int:
        """Prompt tokens of the `pending` sequences that the engine is not running.

        The engine takes sequences in the order in which it was handed them, so those that it
        has not started are the last ones; to them come the requests not handed over at all,
        with their estimate.
        """
        tokens = 0
        for permit in self.permits:
            if waiting := permit.undispatched:
                pending -= waiting
                tokens += permit.estimate * waiting // permit.sequences
        for dispatch in reversed(self.dispatches):
            if pending <= 0:
                break
            waiting = min(pending, dispatch.live)
            pending -= waiting
            tokens += waiting * dispatch.tokens
        return tokens
