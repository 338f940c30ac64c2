"""Permits: what one HTTP request holds of the engine, and the ledger that counts them all.

A permit is opened by the route for m×n sequences and travels in a context variable. The engine
client opens one dispatch under it for each call of the engine, which waits at the gate until the
engine may have it, and writes down on the permit what the route cannot learn otherwise: the first
output and the first failure. At every moment

    accepted − finished = pending + running

holds in sequences, because all four are derived from what is written here.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from app.errors import ClientDisconnected, TidegateError

current_permit: ContextVar["Permit | None"] = ContextVar("current_permit", default=None)


class Observer(Protocol):
    """Told of each acceptance and each end, in sequences."""

    def sequences_accepted(self, route: str, sequences: int) -> None: ...

    def sequences_finished(self, route: str, reason: str, sequences: int) -> None: ...

    def inter_token(self, route: str, seconds: float) -> None: ...

    def prediction_error(self, route: str, seconds: float) -> None: ...


@dataclass(frozen=True)
class Ended:
    """A sequence that ended in the engine: tokens, and seconds from its first step to its first
    token; `at_limit` when it ran to the number of tokens that was asked for by name."""

    prompt_tokens: int
    output_tokens: int
    prefill_s: float
    at_limit: bool


class Gate(Protocol):
    """Where calls wait for the engine. It is told of all that changes what may go next."""

    async def wait(self, dispatch: "Dispatch") -> None:
        """Return when the engine may have it."""

    def accepted(self, permit: "Permit") -> None: ...

    def produced(self, dispatch: "Dispatch", tokens: int) -> None: ...

    def changed(self, permit: "Permit") -> None:
        """Sequences of it were handed over, ended, or were taken back."""

    def first_token(self, permit: "Permit") -> None: ...

    def measured(self, sequence: Ended) -> None: ...


class OpenGate:
    """Lets everything through at once."""

    async def wait(self, dispatch: "Dispatch") -> None:
        return

    def accepted(self, permit: "Permit") -> None: ...

    def produced(self, dispatch: "Dispatch", tokens: int) -> None: ...

    def changed(self, permit: "Permit") -> None: ...

    def first_token(self, permit: "Permit") -> None: ...

    def measured(self, sequence: Ended) -> None: ...


class Call(Protocol):
    """A call of the engine, as its permit may reach into it."""

    def abort(self) -> None:
        """Make the engine forget the sequences that are still live."""

    def produced(self) -> int:
        """Output tokens of all its sequences so far."""


class NoCall:
    """A call that the engine does not know."""

    def abort(self) -> None:
        return

    def produced(self) -> int:
        return 0


class Dispatch:
    """One call of the engine: `live` sequences still in it, each with `tokens` prompt tokens.

    Attributes:
        limit: output tokens that each sequence may have at most; None: as many as fit.
        in_engine: the engine has been given it.
        counted: output tokens that were charged to the request.
        pushed: of those, by sequence, what an output of the engine is still going to bring.
        footprint: KV cache, in tokens, that one of its sequences is expected to hold in the end.

    """

    def __init__(
        self, permit: "Permit", sequences: int, limit: int | None, tokens: int, call: Call
    ) -> None:
        self.permit = permit
        self.sequences = sequences
        self.live = sequences
        self.limit = limit
        self.tokens = tokens
        self.call = call
        self.in_engine = False
        self.footprint = 0.0
        self.counted = 0
        self.pushed: Counter[int] = Counter()

    @property
    def produced_each(self) -> int:
        """Output tokens of one of its sequences, on average."""
        return self.call.produced() // self.sequences

    def output(self, tokens: int) -> None:
        """Note output of the engine."""
        self.permit.output()
        self.count(tokens)

    def ahead(self, sequence: int, tokens: int) -> None:
        """Charge tokens that went to the client before their output is there."""
        self.pushed[sequence] += tokens
        self.count(tokens)

    def behind(self, sequence: int, tokens: int) -> int:
        """Of an output's tokens, those that are not charged yet."""
        known = min(tokens, self.pushed[sequence])
        self.pushed[sequence] -= known
        return tokens - known

    def count(self, tokens: int) -> None:
        """Charge output tokens to the request."""
        if tokens > 0:
            self.counted += tokens
            self.permit.output_tokens += tokens
            self.permit.ledger.gate.produced(self, tokens)

    def settle(self) -> None:
        """Charge what was made and is not charged: what nobody waits for was made all the same."""
        if self in self.permit.open:
            self.count(self.call.produced() - self.counted)

    def end(self, reason: str, sequences: int = 1) -> None:
        """Note that the engine finished some of the sequences for `reason`."""
        if ended := min(sequences, self.live):
            self.live -= ended
            self.permit.end(reason, ended)


@dataclass(frozen=True)
class Claim:
    """Whose request it is, and how it wants to be served.

    Attributes:
        key: the name of the API key; every request without one is of the same key.
        priority: lower is earlier, as in vLLM.
        limit: output tokens that were asked for by name, per sequence.

    """

    key: str = ""
    priority: int = 0
    limit: int | None = None


class Permit:
    """One HTTP request's share of the engine. All times are seconds on the ledger's clock."""

    def __init__(
        self,
        ledger: "Ledger",
        route: str,
        sequences: int,
        estimate: int,
        nested: bool,
        windowed: bool,
        claim: Claim,
    ) -> None:
        self.ledger = ledger
        self.route = route
        self.sequences = sequences
        self.estimate = estimate
        self.nested = nested
        self.windowed = windowed
        self.claim = claim
        # No more of its calls are in the engine, or wait for it, than it was accepted for.
        self.window = asyncio.Semaphore(max(1, sequences))
        self.accepted_at = ledger.clock()
        self.handed_after_s: float | None = None
        self.queue_wait_s: float | None = None
        self.ttft_s: float | None = None
        self.foreseen_s: float | None = None
        self.queued = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure: TidegateError | None = None
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.finish_reason: str | None = None
        self.ended = 0
        self.dispatched = 0
        self.live = 0
        self.open: dict[Dispatch, None] = {}
        self.waiting: dict[Dispatch, None] = {}

    @property
    def started(self) -> bool:
        """Whether the answer's status is known: there is an output or a failure."""
        return self.ttft_s is not None or self.failure is not None

    @property
    def unfinished(self) -> int:
        return self.sequences - self.ended

    @property
    def undispatched(self) -> int:
        """Unfinished sequences that the engine has not been handed yet."""
        if not self.unfinished:
            return 0
        if self.nested:
            return 0 if self.dispatched else self.sequences
        return max(0, self.sequences - self.dispatched)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of its undispatched sequences, estimated until they are tokenised."""
        known = sum(dispatch.sequences * dispatch.tokens for dispatch in self.waiting)
        rest = self.undispatched - sum(dispatch.sequences for dispatch in self.waiting)
        return known + self.estimate * max(0, rest) // self.sequences

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
        self.ledger.gate.changed(self)

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
        self.ledger.gate.changed(self)

    def revoke(self, error: TidegateError) -> None:
        """Take the request back: what is left of it ends now, whoever works on it is told."""
        self.cut(error)
        self.close()

    def cut(self, error: TidegateError) -> None:
        """Have whoever works on the request end it, with this error."""
        self.fail(error)
        if not self.lost.done():
            self.lost.set_exception(error)

    def _remainder(self) -> str:
        if self.failure is None or self.failure.status == ClientDisconnected.status:
            return "aborted"
        return self.failure.ends_as or ("error" if self.failure.status >= 500 else "invalid")

    def _finish(self, reason: str, sequences: int) -> None:
        ended = min(sequences, self.unfinished)
        if ended:
            self.ended += ended
            self.ledger.finish(self.route, reason, ended)

    @asynccontextmanager
    async def dispatch(
        self,
        sequences: int,
        limit: int | None,
        tokens: int,
        call: Call | None = None,
    ) -> AsyncIterator[Dispatch]:
        """Wait for the engine, then hold `sequences` of it.

        Those that are live at the end, or when the permit is closed, are aborted.

        Args:
            sequences: of this call.
            limit: output tokens that each of them may have; None: not known.
            tokens: of its prompt.
            call: how it is reached once the engine has it.

        """
        dispatch = Dispatch(self, sequences, limit, tokens, call or NoCall())
        async with self.window:
            self.waiting[dispatch] = None
            try:
                await self.ledger.gate.wait(dispatch)
            finally:
                del self.waiting[dispatch]
            self._hold(dispatch)
            try:
                yield dispatch
            finally:
                self._release(dispatch)

    def _hold(self, dispatch: Dispatch) -> None:
        if self.handed_after_s is None:
            self.handed_after_s = self.ledger.clock() - self.accepted_at
        self.ledger.dispatches[dispatch] = None
        self.open[dispatch] = None
        self.dispatched += dispatch.sequences
        self.live += dispatch.sequences
        self.prompt_tokens += dispatch.tokens
        self.ledger.gate.changed(self)

    def _release(self, dispatch: Dispatch) -> None:
        """Take a call's sequences back from the engine; a second time changes nothing."""
        if dispatch in self.open:
            if dispatch.live:
                dispatch.settle()
                dispatch.call.abort()
            del self.open[dispatch], self.ledger.dispatches[dispatch]
            self.live -= dispatch.live
            self.ledger.gate.changed(self)


class Ledger:
    """Counts sequences from acceptance to their end. Lives on one event loop, takes no locks."""

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self.observer = observer
        self.clock = clock
        self.gate: Gate = OpenGate()
        self.unfinished = 0
        self.permits: dict[Permit, None] = {}
        self.closed: TidegateError | None = None
        self.coming: set[asyncio.Task[object]] = set()
        self.dispatches: dict[Dispatch, None] = {}

    @contextmanager
    def permit(
        self,
        route: str,
        sequences: int,
        estimate: int = 0,
        *,
        nested: bool = False,
        windowed: bool = False,
        claim: Claim | None = None,
    ) -> Iterator[Permit]:
        """Accept a request.

        Args:
            route: the label under which it is counted.
            sequences: m prompts × n samples (a beam's width); 0 when the engine is not needed.
            estimate: prompt tokens of the whole request, as good as known before tokenising.
            nested: the engine is called several times for one sequence (tool turns, beams), so
                sequences end with the request and not with a call.
            windowed: each of its calls waits for its own turn, no more of them at a time than
                `sequences`.
            claim: whose it is.

        """
        permit = Permit(self, route, sequences, estimate, nested, windowed, claim or Claim())
        if sequences:
            self.observer.sequences_accepted(route, sequences)
            self.unfinished += sequences
        self.permits[permit] = None
        self.gate.accepted(permit)
        if self.closed is not None:
            permit.cut(self.closed)
        token = current_permit.set(permit)
        try:
            yield permit
        finally:
            current_permit.reset(token)
            # In this order: its calls are taken back one by one, the gate counts until the last.
            permit.close()
            del self.permits[permit]
            self.gate.changed(permit)

    @contextmanager
    def request_coming(self) -> Iterator[None]:
        """While the current task reads a request's body: a cut ends that too.

        Raises:
            TidegateError: what was cut with.

        """
        if self.closed is not None:
            raise self.closed
        task = asyncio.current_task()
        assert task is not None
        self.coming.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self.closed is None:
                raise
            task.uncancel()
            raise self.closed from None
        finally:
            self.coming.discard(task)

    def cut(self, error: TidegateError) -> None:
        """End whatever is in flight, and whatever comes or is accepted from now on, with an error.

        The first error stays.
        """
        self.closed = self.closed or error
        for task in self.coming:
            task.cancel()
        for permit in list(self.permits):
            permit.cut(self.closed)

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
            if permit.undispatched:
                pending -= permit.undispatched
                tokens += permit.waiting_tokens
        return tokens + self.last_tokens(pending)

    def last_tokens(self, sequences: int) -> int:
        """Prompt tokens of the sequences that were handed over last."""
        tokens = 0
        for dispatch in reversed(self.dispatches):
            if sequences <= 0:
                break
            counted = min(sequences, dispatch.live)
            sequences -= counted
            tokens += counted * dispatch.tokens
        return tokens
