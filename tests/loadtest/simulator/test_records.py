"""What a record of a step says: its work, and its time where that is known."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.simulator.records import Chunks, Record, dump, load, observations
from loadtest.simulator.step_time import Work

STEP = Record(at=1.0, prefill=0, decodes=2, context=90, prompts=(), gap=0.01, running=2, waiting=0)


def prompts(prefill: int, *complete: tuple[int, int], decodes: int = 0) -> Record:
    return replace(STEP, prefill=prefill, decodes=decodes, prompts=complete, context=10 * decodes)


def attentions(*steps: Record) -> list[int | None]:
    """Twice X of each step; None where it is not known."""
    chunks = Chunks()
    found = [chunks.work(step) for step in steps]
    return [None if work is None else work.attention for work in found]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # A whole prompt: n × (0 + n); two of them; one of which half was cached.
        ([prompts(30, (30, 0))], [900]),
        ([prompts(50, (30, 0), (20, 0))], [900 + 400]),
        ([prompts(16, (32, 16))], [16 * (2 * 16 + 16)]),
        # 100 tokens in steps of 64: 64 × 64, then 36 × (2 × 64 + 36).
        ([prompts(64), prompts(36, (100, 0))], [4096, 36 * (128 + 36)]),
        # The rest of a step is of the next prompt.
        (
            [prompts(64, (50, 0)), prompts(56, (70, 0))],
            [2500 + 14 * 14, 56 * (28 + 56)],
        ),
        # A prompt of three steps beside sequences that decode.
        (
            [prompts(62, decodes=2), prompts(62, decodes=2), prompts(6, (130, 0), decodes=2)],
            [62 * 62, 62 * (124 + 62), 6 * (248 + 6)],
        ),
        # Given up in part, so that the next prompt is complete with tokens that nobody computed:
        # not known, and what follows is.
        ([prompts(64), prompts(30, (30, 0)), prompts(9, (9, 0))], [4096, None, 81]),
    ],
)
def test_chunks_are_told_from_when_prompts_are_complete(
    steps: list[Record], expected: list[int | None]
) -> None:
    assert attentions(*steps) == expected


def test_a_prompt_that_was_given_up_is_forgotten_when_the_engine_is_idle() -> None:
    cut = replace(prompts(64), running=0)
    assert attentions(cut, prompts(30, (30, 0))) == [4096, 900]


def test_the_time_is_the_engines_between_two_steps() -> None:
    (found,) = observations([STEP])
    assert (found.work, found.seconds) == (Work(0, 2, 90, 0), 0.01)


def test_a_step_without_a_decoding_sequence_is_timed_by_the_front_end() -> None:
    first = prompts(64)
    second = replace(prompts(36, (100, 0)), at=1.25, gap=None)
    assert [one.seconds for one in observations([first, second])] == [0.01, 0.25]


@pytest.mark.parametrize(
    "step",
    [
        # The engine slept before: the time since the last step is none of this one's.
        replace(prompts(30, (30, 0)), gap=None),
        replace(STEP, preempted=1),
        replace(STEP, recomputed=40),
        replace(STEP, context=None),
        replace(STEP, decodes=0, context=0),
        replace(STEP, gap=0.0),
    ],
)
def test_what_is_not_known_is_left_out(step: Record) -> None:
    assert list(observations([step])) == []


def test_after_an_idle_engine_only_the_next_step_is_left_out() -> None:
    idle = replace(STEP, running=0)
    woken = replace(prompts(30, (30, 0)), gap=None, at=9.0)
    assert len(list(observations([idle, woken, replace(STEP, at=9.01)]))) == 2


def test_a_file_is_read_by_engine(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    head = {"kind": "steps", "schema": 1, "model": "m"}
    steps = [replace(STEP, at=float(at), engine=at % 2) for at in range(5)]
    path.write_text("\n".join([json.dumps(head), *map(dump, steps)]) + "\n")
    found, engines = load(path)
    assert found["model"] == "m"
    assert [[step.at for step in one] for one in engines] == [[0.0, 2.0, 4.0], [1.0, 3.0]]
    assert engines[0][0] == steps[0]


def test_a_newer_services_record_may_say_more(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    line = asdict(STEP) | {"prompts": [[30, 0]], "more": 1}
    path.write_text(json.dumps({"kind": "steps", "schema": 1}) + "\n" + json.dumps(line))
    assert load(path)[1][0][0].prompts == ((30, 0),)


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"kind": "steps", "schema": 2}', '{"kind": "steps", "schema": 1}\n{"at": 1}', "[]"],
)
def test_what_is_no_such_file_is_said_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps"
    path.write_text(text)
    with pytest.raises(UsageError, match="steps"):
        load(path)
