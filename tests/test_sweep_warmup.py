"""MSER-5 against its published formula, and how the cut is carried back to requests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.scenario import parse_scenario
from simserve.simulate import prepare
from simserve.sweep.warmup import WarmupRule, mser_batches, num_warmup, warmup_rule
from tests.sweep_builders import queue

AUTO = WarmupRule(None, True)


def _published(values, batch):
    """White, Cobb and Spratt (WSC 2000): d* = argmin over d of Σ_{i>d} (Y_i − Ȳ_{k,d})² / (k − d)², term by term."""
    k = len(values) // batch
    means = [sum(values[i * batch : (i + 1) * batch]) / batch for i in range(k)]
    best, best_d = None, 0
    if k < 2:
        return 0
    for d in range(k // 2 + 1):
        left = means[d:]
        centre = sum(left) / len(left)
        error = sum((y - centre) ** 2 for y in left) / len(left) ** 2
        if best is None or error < best - 1e-15:
            best, best_d = error, d
    return best_d


def test_a_series_worked_by_hand():
    """Batch means 9, 1, 2, 1, 2, 1. d = 0: Σ(Y − 8/3)² / 6² = (148/3) / 36; d = 1: 1.2 / 5² = 0.048, the least;
    d = 2: 1 / 4² = 0.0625; d = 3: (2/3) / 3² = 0.074."""
    means = [9, 1, 2, 1, 2, 1]
    errors = {d: np.sum((np.array(means[d:]) - np.mean(means[d:])) ** 2) / (6 - d) ** 2 for d in range(4)}
    assert errors[0] == pytest.approx(148 / 3 / 36)
    assert errors[1] == pytest.approx(1.2 / 25)
    assert errors[2] == pytest.approx(1 / 16)
    assert errors[3] == pytest.approx((2 / 3) / 9)
    assert mser_batches(np.repeat(np.array(means, np.float64), 5)) == 1


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=0, max_size=120), st.integers(1, 5))
def test_mser_is_the_published_formula(values, batch):
    """Sums of squares in closed form choose what the definition chooses, ties aside."""
    found, wanted = mser_batches(np.array(values, np.float64), batch), _published(values, batch)
    k = len(values) // batch
    if found != wanted:
        means = np.array(values[: k * batch], np.float64).reshape(k, batch).mean(axis=1)
        error = [np.sum((means[d:] - means[d:].mean()) ** 2) / (k - d) ** 2 for d in (found, wanted)]
        assert error[0] == pytest.approx(error[1], rel=1e-6, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 60))
def test_mser_does_not_depend_on_scale_or_offset(seed, num_batches):
    """Adding a constant or changing the unit leaves the cut where it is."""
    values = np.random.default_rng(seed).exponential(1.0, 5 * num_batches)
    assert mser_batches(values) == mser_batches(values * 1024.0 + 512.0)


def test_a_transient_is_cut_and_a_steady_series_is_not():
    """A decaying start is cut to where it is small against the noise; without one little is."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, 2000)
    start = 30 * np.exp(-np.arange(2000) / 40)
    cut = 5 * mser_batches(10 + noise + start)
    assert 80 <= cut <= 400
    cuts = [5 * mser_batches(rng.normal(10, 1, 2000)) for _ in range(50)]
    assert np.median(cuts) <= 400


def test_unanswered_requests_take_no_part_but_are_cut_with_the_rest():
    """The cut is counted in requests: ten unanswered ones in front of the first fifty answered ones move it by ten."""
    values = np.concatenate([np.full(50, 100.0), np.random.default_rng(1).normal(1, 0.01, 950)])
    arrivals = np.arange(1000)
    cut = num_warmup(AUTO, values, arrivals)
    assert cut == 50
    holed = np.concatenate([np.full(10, np.nan), values])
    assert num_warmup(AUTO, holed, np.arange(1010)) == 60


def test_at_most_half_is_cut():
    """A series that only grows never settles; half of it is kept all the same."""
    assert num_warmup(AUTO, np.arange(1000.0), np.arange(1000)) == 500
    assert num_warmup(WarmupRule(0.5, True), np.ones(7), np.arange(7)) == 3


def test_requests_that_all_come_at_once_have_no_warm_up():
    """No time passes between their arrivals, so none is early."""
    assert num_warmup(AUTO, np.arange(1000.0)[::-1], np.zeros(1000, np.int64)) == 0


def test_the_rule_is_for_long_generated_workloads():
    """500 requests are a steady state, 499 a batch that is wanted whole; a share given by the user holds for both."""
    long, short = (prepare(parse_scenario(queue(0.5, n))) for n in (500, 499))
    assert warmup_rule("auto", long) == AUTO
    assert warmup_rule("auto", short) == WarmupRule(0.0, False)
    assert warmup_rule(0.2, short) == WarmupRule(0.2, True)
    assert num_warmup(warmup_rule(0.2, short), np.ones(100), np.arange(100)) == 20
    assert warmup_rule(0, long) == WarmupRule(0.0, False)
