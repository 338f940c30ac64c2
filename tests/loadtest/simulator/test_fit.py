"""Terms that are known are found again, whatever lies on them."""

import numpy as np
import pytest

from loadtest.errors import UsageError
from loadtest.simulator import fit
from loadtest.simulator.records import Observation
from loadtest.simulator.step_time import Work

TRUE = np.array([2e-3, 1e-3, 2e-5, 5e-5, 1e-7, 2e-8])


def seconds(work: Work, values: fit.Floats = TRUE) -> float:
    return float(np.dot(fit.row(work), values))


def grid() -> list[tuple[int, Work]]:
    """A cell's number and its work."""
    works = [Work(n, 1, 20, n * n) for n in (16, 32, 64, 128, 256, 512, 1024)]
    works += [Work(0, b, b * c, 0) for b in (1, 2, 4, 8, 16) for c in (16, 500)]
    return list(enumerate(works))


def observed(
    noise: float, seed: int = 0, values: fit.Floats = TRUE, prompts: int = 5
) -> list[Observation]:
    dice = np.random.default_rng(seed)
    return [
        Observation(work, seconds(work, values) * float(np.exp(dice.normal(0, noise))), cell)
        for cell, work in grid()
        for _ in range(40 if work.prefill == 0 else prompts)
    ]


def test_without_noise_the_terms_are_exact() -> None:
    found = fit.fit(observed(0.0))
    assert found.values == pytest.approx(TRUE, rel=1e-6)
    assert found.errors.median < 1e-6
    assert found.strange == 0


def test_with_noise_the_intervals_hold_them() -> None:
    found = fit.fit(observed(0.05))
    for name, true in zip(fit.TERMS, TRUE, strict=True):
        one = found.terms[name]
        assert one.low <= one.value <= one.high
        assert one.low * 0.9 <= true <= one.high * 1.1, name
    assert found.errors.median == pytest.approx(0.034, abs=0.01)  # 0.67 standard deviations


def test_the_sum_of_all_steps_is_not_biased() -> None:
    """With errors relative to what was measured it would be 6 % too low at this noise."""
    found = fit.fit(observed(0.25, prompts=200))
    works = [work for _, work in grid() for _ in range(10)]
    total = sum(seconds(work, found.values) for work in works)
    expected = sum(seconds(work) * float(np.exp(0.25**2 / 2)) for work in works)
    assert total == pytest.approx(expected, rel=0.02)


def test_a_term_is_never_negative() -> None:
    values = np.array([2e-3, 0.0, 2e-5, -1e-5, 1e-7, 0.0])
    found = fit.fit(observed(0.02, values=values))
    assert min(found.values) >= 0
    assert found.terms["decode"].value == 0


def test_interrupted_steps_are_left_out_and_told() -> None:
    steps = observed(0.02)
    steps[::50] = [Observation(one.work, 10 * one.seconds, one.cell) for one in steps[::50]]
    found = fit.fit(steps)
    assert found.values[:5] == pytest.approx(TRUE[:5], rel=0.1)
    assert found.strange == pytest.approx(len(steps[::50]) / len(steps))
    assert found.strange_time > 0.1


def test_a_cell_with_many_steps_counts_as_much_as_one_with_few() -> None:
    """Two cells that disagree: the fit is between them however many steps each has."""
    one, other = Work(0, 1, 0, 0), Work(0, 1, 0, 0)
    steps = [Observation(one, 0.010, 0)] * 900 + [Observation(other, 0.012, 1)] * 10
    found = fit.fit(steps)
    assert seconds(one, found.values) == pytest.approx(0.011, rel=0.01)


def test_the_same_seed_gives_the_same() -> None:
    assert fit.fit(observed(0.1), seed=3) == fit.fit(observed(0.1), seed=3)


def test_the_box_is_what_was_seen() -> None:
    found = fit.fit(observed(0.0))
    assert (found.box.most.prefill, found.box.most.decodes) == (1024, 16)
    assert list(found.box.outside(Work(1024, 17, 0, 0))) == ["decodes"]


def test_errors_of_steps_that_were_not_fitted() -> None:
    work = Work(0, 1, 0, 0)
    steps = [Observation(work, seconds(work) * factor) for factor in (0.8, 1.0, 1.25)]
    found = fit.errors(TRUE, steps)
    assert found.steps == 3
    assert found.median == pytest.approx(0.2)
    assert found.total == pytest.approx(3 / 3.05 - 1)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        fit.fit(observed(0.0)[:5])


@pytest.mark.parametrize(("a", "b"), [(1e-3, 2e-6), (1e-3, 0.0), (0.0, 2e-6)])
def test_a_line_of_medians(a: float, b: float) -> None:
    x = np.repeat([16.0, 64.0, 256.0, 1024.0], 5)
    y = a + b * x
    y[::5] *= 50  # one in five is late, which the median does not see
    assert fit.line(x, y)[0] == pytest.approx(a, abs=1e-9)
    assert fit.line(x, y)[1] == pytest.approx(b, abs=1e-12)
