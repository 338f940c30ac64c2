"""The event decoder, fed in every possible piece."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.sse import Decoder

STREAM = (
    b': a comment\n\ndata: {"a":1}\n\nevent: x\ndata: two\ndata: lines\nid: 7\n\n'
    b"data:no space\r\n\r\ndata: [DONE]\n\n"
)
EVENTS = [b'{"a":1}', b"two\nlines", b"no space", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    decoder = Decoder()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS
    assert not decoder.unfinished


@pytest.mark.parametrize("rest", [b"data: half", b"data: whole line\n"])
def test_an_event_that_was_cut_is_noticed(rest: bytes) -> None:
    decoder = Decoder()
    assert decoder.feed(STREAM + rest) == EVENTS
    assert decoder.unfinished
