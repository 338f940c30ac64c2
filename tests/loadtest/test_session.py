"""How much a server can serve, by a closed loop that is too short for its lengths."""

from dataclasses import replace

import pytest

from loadtest import session
from loadtest.settings import Run, Target
from tests.loadtest import factory

TOKENS_PER_S = 2_000.0
ENDED_PER_S = 30.0
"""Short ones, most of them."""


@pytest.mark.parametrize(
    ("lengths", "target", "capacity"),
    [
        # 20 a second of 100 tokens each, whatever had ended by then.
        ((50, 50, 200), Target(), 20.0),
        ((100, 100, 100), Target(), 20.0),
        # Nobody knows how long the answers were going to be.
        ((50, 50, 200), Target(ignore_eos=False), ENDED_PER_S),
        # An answer's tokens come when it ends.
        ((50, 50, 200), Target(stream=False), ENDED_PER_S),
        # Embeddings have none.
        ((0, 0, 0), Target(), ENDED_PER_S),
    ],
)
def test_capacity(lengths: tuple[int, ...], target: Target, capacity: float) -> None:
    records = [
        replace(record, output_tokens_asked=tokens)
        for record, tokens in zip(factory.records(len(lengths)), lengths, strict=True)
    ]
    summary = {"requests_per_s": ENDED_PER_S, "output_tokens_per_s": TOKENS_PER_S}
    result = replace(factory.result(), run=Run(target=target), records=records, summary=summary)
    assert session.capacity_of(result) == capacity
