"""What is kept of each step, and that nothing that is kept can harm the engine."""

import gc
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.stats import StatsRecorder
from app.engine.steps import StepLog, made_by, without_lines

NOW = 100.0


def sequence(produced: int, prompt: int, cached: int = 0, last: float = NOW) -> SimpleNamespace:
    own = SimpleNamespace(
        num_generation_tokens=produced,
        last_token_ts=last if produced else 0.0,
    )
    return SimpleNamespace(stats=own, prompt_len=prompt, num_cached_tokens=cached)


def finished(produced: int, prompt: int, cached: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_generation_tokens=produced,
        num_prompt_tokens=prompt,
        num_cached_tokens=cached,
    )


def iteration(
    *ended: SimpleNamespace, gaps: tuple[float, ...] = (), first: int = 0
) -> SimpleNamespace:
    return SimpleNamespace(
        finished_requests=list(ended),
        inter_token_latencies_iter=list(gaps),
        time_to_first_tokens_iter=[0.1] * first,
        num_generation_tokens=len(gaps),
        num_preempted_reqs=0,
    )


def scheduler(prefill: int = 0, decodes: int = 0, tokens: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        num_running_reqs=2,
        num_waiting_reqs=1,
        num_skipped_waiting_reqs=1,
        kv_cache_usage=0.5,
        iteration_details=SimpleNamespace(
            num_ctx_tokens=prefill,
            num_generation_requests=decodes,
            num_generation_tokens=decodes if tokens is None else tokens,
            is_dummy=False,
        ),
    )


@pytest.mark.parametrize(
    ("states", "ended", "prompts", "decodes", "context"),
    [
        ([], [], [], 0, 0),
        # Waiting, or in the middle of its prompt: no token yet.
        ([sequence(0, 50)], [], [], 0, 0),
        # The first token is that of the prompt; the second decodes with the prompt behind it.
        ([sequence(1, 50, 16)], [], [(50, 16)], 0, 0),
        ([sequence(2, 50)], [], [], 1, 50),
        ([sequence(7, 50), sequence(3, 20)], [], [], 2, 50 + 5 + 20 + 1),
        # Preempted: it was not in this step.
        ([sequence(7, 50, last=NOW - 1), sequence(2, 20)], [], [], 1, 20),
        # What ended with the step is no longer in hand.
        ([sequence(2, 50)], [finished(4, 30), finished(1, 8, 4)], [(8, 4)], 2, 50 + 32),
    ],
)
def test_what_sequences_say_of_a_step(
    states: list[Any],
    ended: list[Any],
    prompts: list[tuple[int, int]],
    decodes: int,
    context: int,
) -> None:
    made = made_by(dict(enumerate(states)), iteration(*ended))  # type: ignore[arg-type]
    assert (made.prompts, made.decodes, made.context) == (prompts, decodes, context)


def test_a_record_of_a_step() -> None:
    log = StepLog(10)
    log.states = {"a": sequence(3, 50), "b": sequence(1, 20)}
    told = iteration(finished(2, 9), gaps=(0.02, 0.01), first=1)
    log.add(1, 7.0, scheduler(prefill=20, decodes=2), told)
    (record,) = log.records
    assert (record.at, record.engine, record.prefill, record.decodes) == (7.0, 1, 20, 2)
    assert (record.context, record.prompts) == (51 + 9, ((20, 0),))
    assert record.gap == 0.01
    assert (record.running, record.waiting, record.recomputed) == (2, 2, 0)


def test_a_step_without_tokens_is_one() -> None:
    log = StepLog(10)
    log.add(0, 7.0, scheduler(prefill=512), None)
    (record,) = log.records
    assert (record.prefill, record.context, record.gap) == (512, 0, None)


def test_contexts_are_not_guessed() -> None:
    """A client that left took its sequence out of the front end's hand before the step was told."""
    log = StepLog(10)
    log.states = {"a": sequence(3, 50)}
    log.add(0, 7.0, scheduler(decodes=2), iteration(gaps=(0.01,)))
    assert log.records[0].context is None


def test_prompts_are_not_guessed() -> None:
    """All of a step ended with it; what is left in hand made its token before, and waits."""
    log = StepLog(10)
    log.states = {"preempted": sequence(1, 50, last=NOW - 1)}
    log.add(0, 7.0, scheduler(decodes=1), iteration(finished(9, 30), gaps=(0.01,)))
    assert log.records[0].context is None


def test_the_garbage_collector_has_nothing_to_look_at() -> None:
    """A hundred thousand records would hold the event loop for 50 ms at each full collection."""
    log = StepLog(10)
    log.states = {"a": sequence(1, 50)}
    log.add(0, 7.0, scheduler(prefill=50), iteration(first=1))
    for _ in range(2):  # a tuple is let go once what is in it has been
        gc.collect()
    (record,) = log.records
    assert not any(map(gc.is_tracked, (record, record.prompts, *record.prompts)))


def test_tokens_that_are_computed_again_are_told() -> None:
    log = StepLog(10)
    log.states = {"a": sequence(3, 50)}
    log.add(0, 7.0, scheduler(decodes=1, tokens=52), iteration(gaps=(0.01,)))
    assert log.records[0].recomputed == 51


def test_the_ring_is_bounded() -> None:
    log = StepLog(3)
    for at in range(5):
        log.add(0, float(at), scheduler(prefill=1), None)
    assert [record.at for record in log.records] == [2.0, 3.0, 4.0]


def test_what_goes_wrong_in_it_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = StepLog(3)
    log.states = {"a": SimpleNamespace()}
    recorder = StatsRecorder(log=log)
    recorder.stat_logger(None, 0).record(scheduler(decodes=1), iteration(gaps=(0.01,)))
    assert (recorder.failures, len(log.records)) == (1, 0)
    assert recorder.steps[0].running == 2


def test_vllm_does_not_log_each_step(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("vllm.v1.metrics.loggers")
    before = list(logger.filters)
    without_lines()
    try:
        logger.propagate, kept = True, logger.propagate
        with caplog.at_level(logging.INFO, logger.name):
            logger.info("%sIteration(%d): %d context requests", "", 1, 2)
            logger.info("%sAvg prompt throughput", "")
        logger.propagate = kept
    finally:
        logger.filters[:] = before
    assert [record.getMessage() for record in caplog.records] == ["Avg prompt throughput"]
