"""Workloads and engines for the simulator's tests."""

from collections.abc import Callable, Sequence

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from loadtest.simulator.engine import Engine, EngineSettings
from loadtest.simulator.job import Job
from loadtest.simulator.step_time import Coefficients, StepTime

TIME = StepTime(Coefficients(0.005, 1e-5, 2e-4, 3e-8, 1e-9))

unhurried = hypothesis_settings(deadline=None)
"""However busy the machine is."""
few = hypothesis_settings(deadline=None, max_examples=30)
"""For what takes tenths of a second."""

Ask = tuple[int, int, int]
"""Milliseconds since the one before, prompt, output."""
Watch = Callable[[Engine], None]


def jobs_of(asks: Sequence[Ask]) -> list[Job]:
    jobs, at = [], 0
    for number, (gap, prompt, output) in enumerate(asks):
        at += gap * 10**12
        jobs.append(Job(number, prompt, output, at))
    return jobs


def serve(engine: Engine, jobs: Sequence[Job], watch: Watch = lambda engine: None) -> list[Job]:
    """Hand each over as it comes; all that ended, in that order."""
    ended = []
    for job in jobs:
        while engine.now < job.arrived and not engine.idle:
            ended += engine.run(job.arrived)
            watch(engine)
        engine.add(job, job.arrived)
    while not engine.idle:
        ended += engine.run(10**30)
        watch(engine)
    return ended


asks = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=25
)
# The longest request takes 25 blocks of 4: small caches preempt.
settings = st.builds(
    EngineSettings,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.sampled_from([8, 16, 33, 100]),
    kv_blocks=st.integers(25, 60),
    block_size=st.just(4),
    long_prefill_token_threshold=st.sampled_from([0, 0, 5]),
)
