"""The batch knee and how sure the samples are of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.step_time.knee import batch_knee, knee_interval


def test_samples_without_noise_are_sure():
    """Perfect scaling to 8, none after: the knee is 8 in every draw."""
    interval = knee_interval({1: [1.0] * 3, 2: [1.0] * 3, 4: [1.0] * 3, 8: [1.0] * 3, 16: [2.0] * 3})
    assert (interval.knee, interval.low, interval.high, interval.shares) == (8, 8, 8, {8: 1.0})


def test_single_samples_have_a_knee_and_no_interval():
    """Nothing was repeated: no draws are made up."""
    assert knee_interval({1: [1.0], 2: [1.0], 4: [3.0]}) == (2, 2, 2, {})


def test_a_doubling_at_the_threshold_is_a_coin_toss():
    """Samples just above and just below √2 in equal numbers: both knees take about half of the draws."""
    edge = 2 / np.sqrt(2)
    interval = knee_interval({1: [1.0], 2: [edge * 0.99, edge * 1.01]}, draws=4000)
    assert (interval.low, interval.high) == (1, 2)
    # the median of two draws is below the edge if both are low; one of each gives the mean, which is the edge itself
    assert interval.shares[1] >= 0.2 and interval.shares[2] >= 0.2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5), min_size=2, max_size=6), st.integers(0, 9))
def test_the_interval_is_of_measured_batches_and_the_shares_add_up(groups, seed):
    """Whatever the samples: low ≤ high, all of them batches that were measured, shares of one."""
    samples = {2**i: group for i, group in enumerate(groups)}
    interval = knee_interval(samples, seed, draws=50)
    assert interval.low <= interval.high and {interval.low, interval.high, interval.knee} <= set(samples)
    assert set(interval.shares) <= set(samples) and (
        sum(interval.shares.values()) == pytest.approx(1.0) or not interval.shares
    )
    assert interval.knee == batch_knee({batch: float(np.median(group)) for batch, group in samples.items()})
    assert interval == knee_interval(samples, seed, draws=50)
