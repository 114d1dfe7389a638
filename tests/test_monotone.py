"""Least-squares monotone fit along context, against scipy's and its own laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from simserve.step_time.monotone import non_decreasing

SECONDS = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=12)


@given(SECONDS)
def test_it_is_isotonic_regression(values):
    """The same as scipy's, an independent implementation."""
    assert non_decreasing(values) == pytest.approx(isotonic_regression(values).x)


@given(SECONDS)
def test_it_rises_keeps_the_mean_and_stays_in_range(values):
    """Never a step down (rounding aside), no time gained or lost in all, nothing outside what was measured."""
    found = np.array(non_decreasing(values))
    assert np.all(np.diff(found) >= -1e-12)
    assert found.mean() == pytest.approx(np.mean(values))
    assert min(values) * (1 - 1e-12) <= found[0] and found[-1] <= max(values) * (1 + 1e-12)


@given(SECONDS)
def test_what_rises_already_is_left_alone(values):
    """Measured points in the right order come back exactly."""
    assert non_decreasing(sorted(values)) == tuple(sorted(values))
