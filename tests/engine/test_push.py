"""Which way an output takes, without an engine: the sequence and its stream are stand-ins."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import RequestOutputCollector

from app.engine.coalesce import Coalescer, Held
from app.engine.push import CHARGED_TOGETHER, Pusher
from app.engine.relay import KEPT
from app.errors import EngineDead

CHOICE = 1


class Holding(Coalescer):
    """It holds when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.told = False
        self.held: list[Held] = []

    @property
    def holding(self) -> bool:
        return self.told

    def _hold(self, text: Held, since: float | None = None) -> None:
        self.held.append(text)

    def flush(self) -> None:
        self.held = [text for text in self.held if not text.flush()]


@dataclass
class Stream:
    """One sequence with its collector and channel; token n has the text `<n>`."""

    free: bool = True
    empties: bool = True
    broken: bool = False
    pushed: list[tuple[int, str]] = field(default_factory=list)
    usual: list[list[int]] = field(default_factory=list)
    """Token ids of each output that took the usual way."""

    def __post_init__(self) -> None:
        self.tokens: list[int] = []
        self.held = False
        self.charged: list[int] = []
        self.said = 0
        self.collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")
        self.permit = SimpleNamespace(failure=None)
        self.state: Any = SimpleNamespace(
            make_request_output=self.make, detokenizer=self, request_index=CHOICE
        )
        dispatch: Any = SimpleNamespace(permit=self.permit, ahead=self.charge)
        self.coalescer = Holding()
        self.token_ids: list[int] = []
        self.output_text = ""
        self.pusher = Pusher(self.state, self.collector, self, dispatch, self.coalescer)
        self.state.make_request_output = self.pusher

    def make(self, token_ids: list[int], *rest: Any, **more: Any) -> str:
        self.usual.append(token_ids)
        return "output"

    def charge(self, choice: int, tokens: int) -> None:
        assert choice == CHOICE
        self.charged.append(tokens)

    def open(self, *, empties: bool) -> None:
        raise AssertionError

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        if self.held:
            return ""
        new, self.said = self.tokens[self.said :], len(self.tokens)
        return "".join(f"<{token}>" for token in new)

    def push(self, choice: int, text: str) -> None:
        if self.broken:
            raise RuntimeError("the transport has no room")
        self.pushed.append((choice, text))

    def decode_next(self, token: int) -> str:
        self.tokens.append(token)
        return ""

    def take(self, token: int) -> bool:
        """What the relay does with the next token of a sequence without stop strings."""
        taken = self.pusher.take([token])
        if not taken:
            self.pusher.give_back()
        return taken

    def token(self, token: int, finish_reason: FinishReason | None = None) -> Any:
        """What the output loop does with the next token."""
        self.tokens.append(token)
        return self.state.make_request_output([token], None, finish_reason, None, error=None)


def test_a_text_is_pushed_and_makes_no_output() -> None:
    stream = Stream()
    assert stream.token(7) is None
    assert stream.pushed == [(CHOICE, "<7>")]
    assert stream.usual == []


def test_tokens_are_charged_some_at_a_time() -> None:
    stream = Stream()
    for token in range(2 * CHARGED_TOGETHER + 1):
        stream.token(token)
    assert stream.charged == [CHARGED_TOGETHER] * 2
    # What is left is in the last output, which charges for what was not.
    stream.token(99, FinishReason.LENGTH)
    assert stream.charged == [CHARGED_TOGETHER] * 2


def test_the_last_output_takes_the_usual_way_with_all_that_was_pushed() -> None:
    stream = Stream()
    for token in (1, 2):
        stream.token(token)
    assert stream.token(3, FinishReason.LENGTH) == "output"
    assert stream.usual == [[1, 2, 3]]
    assert "make_request_output" not in vars(stream.state)


@pytest.mark.parametrize("empties", [True, False])
def test_an_empty_text_is_sent_where_the_handler_would(empties: bool) -> None:
    stream = Stream(empties=empties)
    stream.held = True
    assert stream.token(1) is None
    stream.held = False
    assert stream.token(2) is None
    assert stream.pushed == [(CHOICE, "")] * empties + [(CHOICE, "<1><2>")]
    stream.token(3, FinishReason.LENGTH)
    assert stream.usual == [[1, 2, 3]]


def occupied(stream: Stream) -> None:
    stream.collector.output = object()


def slow(stream: Stream) -> None:
    stream.free = False


def failed(stream: Stream) -> None:
    """As a cut, a client that left and an engine's error note it."""
    stream.permit.failure = EngineDead()


@pytest.mark.parametrize("obstacle", [occupied, slow, failed])
def test_nothing_is_pushed_past_an_obstacle(obstacle: Callable[[Stream], None]) -> None:
    stream = Stream()
    stream.token(1)
    obstacle(stream)
    assert stream.token(2) == "output"
    assert stream.token(3) == "output"
    assert stream.pushed == [(CHOICE, "<1>")]
    assert stream.usual == [[1, 2], [3]]


async def test_what_cannot_be_pushed_ends_this_request_alone() -> None:
    stream = Stream(broken=True)
    assert stream.token(1) is None
    with pytest.raises(RuntimeError, match="no room"):
        await stream.collector.get()
    assert stream.charged == []


# -- while the front end is busy


def holding() -> Stream:
    """A stream that has sent its first text; from now on texts are held."""
    stream = Stream()
    stream.token(0)
    stream.pushed.clear()
    stream.coalescer.told = True
    return stream


def test_the_first_text_is_not_held() -> None:
    stream = Stream()
    stream.coalescer.told = stream.held = True
    stream.token(1)  # a part of a character
    stream.held = False
    stream.token(2)
    assert stream.pushed == [(CHOICE, ""), (CHOICE, "<1><2>")]
    stream.token(3)
    assert len(stream.pushed) == 2
    stream.coalescer.flush()
    assert stream.pushed[2:] == [(CHOICE, "<3>")]


def test_texts_that_are_held_go_out_as_one() -> None:
    stream = holding()
    assert [stream.token(token) for token in (1, 2)] == [None, None]
    assert stream.pushed == []
    stream.coalescer.flush()
    assert stream.pushed == [(CHOICE, "<1><2>")]
    stream.coalescer.flush()
    assert len(stream.pushed) == 1
    stream.token(3, FinishReason.LENGTH)
    assert stream.usual == [[0, 1, 2, 3]]


def test_what_is_held_when_it_is_calm_again_takes_what_comes_with_it_and_no_more() -> None:
    stream = holding()
    stream.token(1)
    stream.coalescer.told = False
    stream.token(2)
    assert stream.pushed == []
    stream.coalescer.flush()
    assert stream.pushed == [(CHOICE, "<1><2>")]
    stream.token(3)
    assert stream.pushed[1:] == [(CHOICE, "<3>")]


def test_the_text_of_what_is_held_is_made_when_it_goes() -> None:
    stream = holding()
    assert [stream.take(token) for token in (1, 2)] == [True, True]
    assert (stream.pusher.kept, stream.tokens) == ([1, 2], [0])
    stream.coalescer.told = False
    stream.coalescer.flush()
    assert (stream.pusher.kept, stream.token_ids) == ([], [1, 2])
    assert stream.pushed == [(CHOICE, "<1><2>")]
    assert stream.take(3)
    assert stream.pushed[1:] == [(CHOICE, "<3>")]
    assert stream.token(4, FinishReason.LENGTH) == "output"
    assert stream.usual == [[0, 1, 2, 3, 4]]


def test_what_is_kept_is_read_before_the_last_output_which_charges_for_it() -> None:
    stream = holding()
    stream.take(1)
    for token in range(2, CHARGED_TOGETHER + 2):
        stream.take(token)
    # As an abort does, without the relay, after all that was produced has been charged.
    assert stream.state.make_request_output([], None, FinishReason.ABORT, None) == "output"
    kept = [*range(1, CHARGED_TOGETHER + 2)]
    assert (stream.pusher.kept, stream.token_ids, stream.usual) == ([], kept, [[0, *kept]])
    assert stream.charged == []


def test_a_stream_that_has_more_to_come_is_held_on_without_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = holding()
    stream.take(1)
    monkeypatch.setattr(stream.coalescer, "holds", lambda _: pytest.fail("it asks"))
    stream.coalescer.flush()
    assert [stream.take(token) for token in (2, 3)] == [True, True]
    assert stream.pushed == [(CHOICE, "<1>")]
    stream.coalescer.flush()
    assert stream.pushed[1:] == [(CHOICE, "<2><3>")]


def test_a_stream_that_had_nothing_to_send_is_held_no_longer() -> None:
    stream = holding()
    stream.take(1)
    stream.coalescer.flush()
    stream.coalescer.flush()
    assert not stream.coalescer.held
    stream.coalescer.told = False
    assert stream.take(2)
    assert stream.pushed == [(CHOICE, "<1>"), (CHOICE, "<2>")]


def test_nothing_is_held_on_once_it_is_calm() -> None:
    stream = holding()
    stream.take(1)
    stream.coalescer.told = False
    stream.coalescer.flush()
    assert not stream.coalescer.held
    assert stream.take(2)
    assert stream.pushed == [(CHOICE, "<1>"), (CHOICE, "<2>")]


def test_no_more_than_a_few_are_kept() -> None:
    stream = holding()
    for token in range(KEPT + 1):
        stream.take(token)
    assert (len(stream.pusher.kept), len(stream.token_ids), stream.pushed) == (1, KEPT, [])
    stream.coalescer.flush()
    assert stream.pushed == [(CHOICE, "".join(f"<{token}>" for token in range(KEPT + 1)))]


def test_what_is_kept_is_charged_when_it_is_read() -> None:
    stream = holding()
    for token in range(CHARGED_TOGETHER):
        stream.take(token)
    assert stream.charged == []
    stream.coalescer.flush()
    assert stream.charged == [CHARGED_TOGETHER + 1]


@pytest.mark.parametrize("obstacle", [occupied, slow, failed])
def test_nothing_is_taken_past_an_obstacle_unless_it_waits_already(
    obstacle: Callable[[Stream], None],
) -> None:
    stream, waiting = Stream(), holding()
    waiting.take(1)
    for one in (stream, waiting):
        obstacle(one)
    assert not stream.take(1)
    assert waiting.take(2)
    waiting.coalescer.flush()
    assert waiting.pushed == []
    assert waiting.pusher.kept == [1, 2]
    assert bool(waiting.coalescer.held) == (obstacle is not failed)


async def test_a_text_that_cannot_be_made_ends_this_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream()
    monkeypatch.setattr(stream, "decode_next", lambda _: 1 / 0)
    assert stream.take(1)
    with pytest.raises(ZeroDivisionError):
        await stream.collector.get()


def test_what_is_held_goes_with_the_last_output() -> None:
    stream = holding()
    stream.token(1)
    assert stream.token(2, FinishReason.STOP) == "output"
    stream.coalescer.flush()
    assert (stream.pushed, stream.usual) == ([], [[0, 1, 2]])


@pytest.mark.parametrize("obstacle", [occupied, slow, failed])
def test_what_is_held_stays_before_an_obstacle(obstacle: Callable[[Stream], None]) -> None:
    stream = holding()
    stream.token(1)
    obstacle(stream)
    stream.coalescer.flush()
    # It is tried again unless nothing comes any more.
    assert bool(stream.coalescer.held) == (obstacle is not failed)
    assert stream.token(2) == "output"
    assert (stream.pushed, stream.usual) == ([], [[0, 1, 2]])
    stream.coalescer.flush()
    assert not stream.coalescer.held


def test_what_is_held_goes_out_when_the_client_reads_again() -> None:
    stream = holding()
    stream.token(1)
    slow(stream)
    stream.coalescer.flush()
    stream.free = True
    stream.coalescer.flush()
    assert stream.pushed == [(CHOICE, "<1>")]


async def test_what_is_held_and_cannot_be_sent_ends_this_request_alone() -> None:
    stream = holding()
    stream.broken = True
    stream.token(1)
    stream.coalescer.flush()
    with pytest.raises(RuntimeError, match="no room"):
        await stream.collector.get()
