"""What holds for every workload, in the engine step by step and in the fast one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.simulator.engine import Engine, EngineSettings
from loadtest.simulator.fast_engine import FastEngine
from loadtest.simulator.job import Job
from loadtest.simulator.ticks import ticks
from tests.loadtest.simulator.factory import TIME, Ask, asks, jobs_of, serve, settings, unhurried

BOTH = [Engine, FastEngine]


class Watched(Engine):
    """Checks each step."""

    def schedule(self) -> list[tuple[Job, int]]:
        preempted = self.preemptions
        chunks = super().schedule()
        budget = self.settings.max_num_batched_tokens
        assert sum(n for _, n in chunks) <= budget
        assert all(n > 0 for _, n in chunks)
        assert len(self.running) <= self.settings.max_num_seqs
        held = sum(job.blocks for job in self.running)
        assert held + self.blocks.free == self.blocks.total
        assert self.blocks.free >= 0
        assert all(job.blocks == self.blocks.of(job.computed + n) for job, n in chunks)
        if self.waiting and preempted == self.preemptions:
            # Work conserving: something binds. Nobody is passed.
            spent = sum(n for _, n in chunks) == budget
            full = len(self.running) == self.settings.max_num_seqs
            assert spent or full or self.blocks.of(self.waiting[0].tokens) > self.blocks.free
        return chunks


@unhurried
@given(asks, settings)
def test_nothing_is_lost_and_all_is_free_in_the_end(
    workload: list[Ask], given_settings: EngineSettings
) -> None:
    engine, jobs = Watched(given_settings, TIME), jobs_of(workload)
    seen = [0]

    def watch(engine: Engine) -> None:
        assert engine.now >= seen[-1]
        seen.append(engine.now)

    ended = serve(engine, jobs, watch)
    assert sorted(job.number for job in ended) == [job.number for job in jobs]
    assert engine.tokens == sum(job.output for job in jobs)
    assert engine.blocks.free == engine.blocks.total
    assert engine.preemptions == sum(job.preemptions for job in jobs)
    for job in jobs:
        assert job.produced == job.output
        assert job.started is not None
        assert job.first is not None
        assert job.ended is not None
        assert job.arrived <= job.started < job.first <= job.ended


def history(kind: type[Engine], workload: list[Ask], given_settings: EngineSettings) -> list[str]:
    engine, jobs = kind(given_settings, TIME), jobs_of(workload)
    seen: list[str] = []

    def watch(engine: Engine) -> None:
        running = [job.number for job in engine.running]
        waiting = [job.number for job in engine.waiting]
        seen.append(f"{engine.now} {running} {waiting} {engine.blocks.free}")

    serve(engine, jobs, watch)
    totals = f"{engine.now} {engine.steps} {engine.tokens} {engine.preemptions} {engine.busy}"
    for job in jobs:
        job.born = 0  # what the fast one counts from
    return [*seen, *map(str, jobs), totals, str(engine.most)]


@unhurried
@given(asks, settings)
def test_the_fast_one_is_equal_to_the_tick(
    workload: list[Ask], given_settings: EngineSettings
) -> None:
    assert history(FastEngine, workload, given_settings) == history(
        Engine, workload, given_settings
    )


@unhurried
@given(asks, settings, st.lists(st.integers(1, 10**15), max_size=20))
def test_nothing_starts_or_ends_while_it_is_quiet(
    workload: list[Ask], given_settings: EngineSettings, gaps: list[int]
) -> None:
    engine = FastEngine(given_settings, TIME)
    for job in jobs_of(workload):
        engine.add(job, 0)
    while not engine.idle:
        quiet = engine.quiet()
        while engine.now < quiet:
            before = engine.running[:]
            assert engine.run(min(quiet, engine.now + (gaps.pop() if gaps else quiet))) == []
            assert [job for job in engine.running if job not in before] == []
        engine.run(engine.now + 1)


def test_the_examples_are_of_all_kinds() -> None:
    """Small caches do preempt, and most steps are made in one go."""
    workload = [(5, 20, 30)] * 20
    tight = EngineSettings(8, 33, 25, 4, long_prefill_token_threshold=5)
    jobs = jobs_of(workload)
    serve(Engine(tight, TIME), jobs)
    assert sum(job.preemptions for job in jobs) > 5


@pytest.mark.parametrize("kind", BOTH)
def test_one_request_takes_what_its_steps_add_up_to(kind: type[Engine]) -> None:
    engine = kind(EngineSettings(max_num_batched_tokens=256), TIME)
    (job,) = jobs_of([(0, 300, 3)])
    serve(engine, [job])
    # 256 and 44 prompt tokens in pieces, then two tokens with 300 and 301 in the cache.
    first = 2 * 0.005 + 300 * 1e-5 + 1e-9 * (256 * 128 + 44 * (256 + 22))
    rest = 2 * (0.005 + 2e-4) + 3e-8 * (300 + 301)
    assert job.first == pytest.approx(ticks(first))
    assert job.ended == pytest.approx(ticks(first + rest))
    assert engine.steps == 4


@pytest.mark.parametrize("kind", BOTH)
def test_a_sequence_that_was_preempted_computes_its_tokens_again(kind: type[Engine]) -> None:
    # Two of 8 + 16 tokens take 12 blocks of 4 in the end; there are 8.
    engine = kind(EngineSettings(2, 64, 8, 4), TIME)
    jobs = jobs_of([(0, 8, 16), (0, 8, 16)])
    serve(engine, jobs)
    assert [job.preemptions for job in jobs] == [0, 1]
    assert jobs[0].ended is not None
    assert jobs[1].ended is not None
    assert jobs[0].ended < jobs[1].ended


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (40, 2)])
def test_what_could_never_be_served_is_refused(
    kind: type[Engine], prompt: int, output: int
) -> None:
    engine = kind(EngineSettings(kv_blocks=10, block_size=4), TIME)
    with pytest.raises(ValueError, match="job 7"):
        engine.add(Job(7, prompt, output), 0)
    engine.add(Job(8, 40, 1), 0)


@unhurried
@given(st.integers(1, 64), st.integers(0, 10_000), st.integers(0, 10**16), st.integers(1, 500))
def test_a_stretch_ends_with_the_first_step_that_reaches_its_time(
    decodes: int, context: int, time: int, most: int
) -> None:
    steps = TIME.until(decodes, context, time, most)
    assert 1 <= steps <= most
    assert steps == most or TIME.stretch(decodes, context, steps) >= time
    assert steps == 1 or TIME.stretch(decodes, context, steps - 1) < time
