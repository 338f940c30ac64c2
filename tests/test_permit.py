"""The ledger's counts, without an engine and without a clock."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ClientDisconnected, EngineDead, InternalError, InvalidValue, TidegateError
from app.permit import Ledger, current_permit
from tests.rig.clock import Clock


class Counts:
    """An observer that adds up."""

    def __init__(self) -> None:
        self.accepted = 0
        self.finished: Counter[str] = Counter()

    def sequences_accepted(self, route: str, sequences: int) -> None:
        self.accepted += sequences

    def sequences_finished(self, route: str, reason: str, sequences: int) -> None:
        self.finished[reason] += sequences

    def inter_token(self, route: str, seconds: float) -> None:
        raise AssertionError("nobody measures here")

    def prediction_error(self, route: str, seconds: float) -> None:
        raise AssertionError("nobody predicts here")


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(counts: Counts, clock: Clock) -> Ledger:
    return Ledger(counts, clock)


async def test_a_permit_counts_from_acceptance_to_its_end(ledger: Ledger, counts: Counts) -> None:
    with ledger.permit("completions", 3) as permit:
        assert (ledger.unfinished, ledger.handed, counts.accepted) == (3, 0, 3)
        async with permit.dispatch(3, None, 5) as dispatch:
            assert ledger.handed == 3
            dispatch.end("length")
            assert (ledger.unfinished, ledger.handed) == (2, 2)
            dispatch.end("stop", 2)
        assert (ledger.unfinished, ledger.handed) == (0, 0)
    assert counts.finished == {"length": 1, "stop": 2}


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (None, "aborted"),
        (ClientDisconnected(), "aborted"),
        (InvalidValue("too long"), "invalid"),
        (EngineDead(), "error"),
    ],
)
async def test_what_is_left_ends_with_the_permit(
    ledger: Ledger, counts: Counts, failure: TidegateError | None, reason: str
) -> None:
    with ledger.permit("completions", 2) as permit:
        async with permit.dispatch(1, None, 5):
            pass
        if failure is not None:
            permit.fail(failure)
    assert counts.finished == {reason: 2}
    assert permit.finish_reason == reason
    assert (ledger.unfinished, ledger.handed) == (0, 0)


async def test_the_first_failure_stays(ledger: Ledger) -> None:
    first = EngineDead()
    with ledger.permit("completions", 1) as permit:
        permit.fail(first)
        permit.fail(InvalidValue("its consequence"))
    assert permit.failure is first


async def test_a_cut_meets_what_is_in_flight_and_what_comes_yet(ledger: Ledger) -> None:
    first, second = InternalError("first"), InternalError("second")
    with ledger.permit("completions", 1) as before:
        assert not before.lost.done()
        ledger.cut(first)
        ledger.cut(second)
        with ledger.permit("completions", 1) as after:
            for permit in (before, after):
                assert permit.failure is first
                assert permit.lost.exception() is first


async def read(ledger: Ledger) -> None:
    """A body that does not come."""
    with ledger.request_coming():
        await asyncio.sleep(60)


async def test_a_cut_meets_a_body_that_is_still_coming(ledger: Ledger) -> None:
    reading = asyncio.create_task(read(ledger))
    await asyncio.sleep(0)
    ledger.cut(InternalError("cut"))
    with pytest.raises(InternalError, match="cut"):
        await reading
    assert reading.cancelling() == 0
    with pytest.raises(InternalError, match="cut"):  # also the next one
        await read(ledger)


async def test_a_body_whose_task_is_cancelled_is_not_cut(ledger: Ledger) -> None:
    reading = asyncio.create_task(read(ledger))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not ledger.coming


async def test_a_nested_request_ends_with_its_last_call(ledger: Ledger, counts: Counts) -> None:
    with ledger.permit("responses", 1, nested=True) as permit:
        for _ in range(3):
            async with permit.dispatch(1, None, 5) as dispatch:
                dispatch.end("stop")
            assert ledger.unfinished == 1
    assert counts.finished == {"stop": 1}
    assert counts.accepted == 1


async def test_an_exception_releases_everything(ledger: Ledger, counts: Counts) -> None:
    async def fail() -> None:
        with ledger.permit("completions", 4) as permit:
            async with permit.dispatch(4, None, 1):
                raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await fail()
    assert (ledger.unfinished, ledger.handed, current_permit.get()) == (0, 0, None)
    assert sum(counts.finished.values()) == counts.accepted == 4


async def test_a_request_that_needs_no_engine_is_not_counted(
    ledger: Ledger, counts: Counts
) -> None:
    with ledger.permit("tokenize", 0):
        assert ledger.unfinished == 0
    assert (counts.accepted, counts.finished) == (0, {})


async def test_times_run_from_acceptance(ledger: Ledger, clock: Clock) -> None:
    with ledger.permit("completions", 1) as permit:
        clock.now = 2.0
        async with permit.dispatch(1, None, 1):
            assert not permit.started
            clock.now = 5.0
            permit.output()
            clock.now = 9.0
            permit.output()
    assert (permit.handed_after_s, permit.ttft_s, permit.started) == (2.0, 5.0, True)


async def test_pending_tokens_are_those_of_the_last_ones_handed_over(ledger: Ledger) -> None:
    async with AsyncExitStack() as stack:
        for tokens in (10, 20, 30):
            permit = stack.enter_context(ledger.permit("completions", 1, estimate=999))
            await stack.enter_async_context(permit.dispatch(1, None, tokens))
        assert [ledger.pending_tokens(n) for n in range(4)] == [0, 30, 50, 60]


async def test_pending_tokens_are_estimated_until_the_engine_has_the_prompts(
    ledger: Ledger,
) -> None:
    with ledger.permit("completions", 4, estimate=100) as permit:
        assert ledger.pending_tokens(4) == 100
        async with permit.dispatch(1, None, 7):
            assert ledger.pending_tokens(4) == 75 + 7
            assert ledger.pending_tokens(3) == 75


Step = tuple[int, int, list[int], bool]
steps = st.lists(
    st.tuples(
        st.integers(0, 5),  # sequences
        st.integers(0, 5),  # handed over
        st.lists(st.integers(0, 3), max_size=4),  # ends
        st.booleans(),  # nested
    ),
    max_size=12,
)


@given(steps, st.integers(0, 12))
async def test_the_books_balance_at_every_moment(plan: list[Step], close_after: int) -> None:
    counts = Counts()
    ledger = Ledger(counts)

    def check() -> None:
        assert ledger.unfinished == counts.accepted - sum(counts.finished.values())
        assert 0 <= ledger.handed <= ledger.unfinished

    async with AsyncExitStack() as all_of_them:
        for index, (sequences, handed, ends, nested) in enumerate(plan):
            stack = await all_of_them.enter_async_context(AsyncExitStack())
            permit = stack.enter_context(ledger.permit("any", sequences, nested=nested))
            dispatch = await stack.enter_async_context(permit.dispatch(handed, None, 1))
            check()
            for end in ends:
                dispatch.end("stop", end)
                check()
            if index < close_after:
                await stack.aclose()
                check()
    check()
    assert ledger.unfinished == 0
    assert not ledger.dispatches
    assert not ledger.permits


async def test_tokens_that_went_ahead_of_their_output_are_charged_once(ledger: Ledger) -> None:
    with ledger.permit("completions", 2) as permit:
        async with permit.dispatch(2, None, 5) as dispatch:
            dispatch.output(dispatch.behind(0, 1))
            dispatch.ahead(0, 1)
            dispatch.ahead(0, 1)
            assert permit.output_tokens == 3
            # An output of the sequence of which nothing went ahead, and then one of the other's.
            dispatch.output(dispatch.behind(1, 2))
            assert permit.output_tokens == 5
            dispatch.output(dispatch.behind(0, 3))
            assert permit.output_tokens == 6
            dispatch.end("length", 2)
