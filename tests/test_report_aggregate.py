"""Aggregation for charts: bounded, conserving, and equal to the plain definition on small data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.report.aggregate import (
    MAX_QUANTILES,
    count_in_bins,
    group_reasons,
    is_skewed,
    linear_ticks,
    log_ticks,
    quantile_curve,
    quantile_levels,
    resample_means,
    rounded,
    weighted_quantile_curve,
)

LAWS = settings(max_examples=60, deadline=None)
numbers = st.floats(0, 1e6, allow_nan=False)
samples = st.lists(numbers, min_size=1, max_size=300)


def test_levels_are_few_and_hold_the_ends_and_the_tail():
    """At most 200 levels, rising, from 0 to 1, with p50, p90, p95, p99 and p99.9 among or within half a percent."""
    levels = quantile_levels()
    assert len(levels) <= MAX_QUANTILES
    assert levels[0] == 0 and levels[-1] == 1 and (np.diff(levels) > 0).all()
    assert {0.9, 0.95, 0.99, 0.999} <= set(levels.tolist())
    assert np.abs(levels - 0.5).min() < 0.005


@LAWS
@given(samples)
def test_a_quantile_curve_rises_from_the_smallest_to_the_largest(values):
    """A curve is monotone, begins at the minimum and ends at the maximum, whatever the order of the values."""
    curve = quantile_curve(values, quantile_levels())
    assert (np.diff(curve) >= -1e-9 * max(1.0, *values)).all()
    assert curve[0] == min(values) and curve[-1] == max(values)
    np.testing.assert_array_equal(curve, quantile_curve(sorted(values), quantile_levels()))


@LAWS
@given(samples, st.integers(0, 20))
def test_values_that_never_happened_are_left_out(values, missing):
    """NaNs change nothing, and a latency that no request has gives a curve of NaNs."""
    levels = quantile_levels(50)
    np.testing.assert_array_equal(
        quantile_curve([*values, *[np.nan] * missing], levels), quantile_curve(values, levels)
    )
    assert np.isnan(quantile_curve([np.nan] * missing, levels)).all()


@LAWS
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))
def test_quantiles_of_a_histogram_fall_in_the_bin_of_the_true_quantile(counts):
    """The quantile of counted values lies in the bin where the value of that rank was counted."""
    edges = 2.0 ** np.arange(len(counts) + 1)
    levels = np.array([0.01, 0.25, 0.5, 0.9, 1.0])
    ranks = np.repeat(np.arange(len(counts)), counts)
    bins = np.quantile(ranks, levels, method="inverted_cdf")
    found = weighted_quantile_curve(edges, counts, levels)
    assert (edges[bins] <= found).all() and (found <= edges[bins + 1]).all()


def test_a_histogram_of_nothing_has_no_quantiles():
    """No gaps between tokens: NaN, not a number."""
    assert np.isnan(weighted_quantile_curve(np.array([1.0, 2.0]), [0], quantile_levels(20))).all()


@LAWS
@given(
    st.lists(st.tuples(st.floats(0.01, 10), numbers), min_size=1, max_size=40),
    st.integers(1, 50),
    st.floats(1.0, 3.0),
)
def test_resampling_conserves_the_integral(steps, num_bins, stretch):
    """Σ mean × covered width over bins that span the function equals Σ value × width, also where bins reach past it."""
    widths, values = np.array(steps).T
    bounds = np.concatenate([[0.0], np.cumsum(widths)])
    edges = np.linspace(0, bounds[-1] * stretch, num_bins + 1)
    means = resample_means(bounds, values, edges)
    covered = np.diff(np.clip(edges, 0, bounds[-1]))
    assert np.nansum(means * covered) == pytest.approx((values * widths).sum(), rel=1e-9, abs=1e-9)


def test_resampling_keeps_a_constant_and_knows_where_it_ends():
    """A constant stays one in every bin it reaches; past its end there is nothing."""
    means = resample_means(np.array([0.0, 1.0, 3.0]), [5, 5], np.array([0.0, 0.5, 2.0, 3.0, 4.0]))
    np.testing.assert_allclose(means[:3], 5.0)
    assert np.isnan(means[3])


def test_resampling_weighs_by_time():
    """One second of 0 and three of 4 make a mean of 3."""
    assert resample_means(np.array([0.0, 1.0, 4.0]), [0, 4], np.array([0.0, 4.0]))[0] == pytest.approx(3.0)


@LAWS
@given(samples, st.integers(1, 120))
def test_every_value_is_counted_once(values, num_bins):
    """Bins hold all values between them, and there are as many bins as asked for."""
    edges, counts = count_in_bins(values, num_bins)
    assert counts.sum() == len(values) and len(counts) == num_bins == len(edges) - 1
    assert edges[0] == 0


@LAWS
@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e9))
def test_logarithmic_ticks_stay_inside_and_few(low, factor):
    """Ticks lie in the domain, rise, and are at most as many as asked for."""
    ticks = log_ticks(low, low * factor)
    assert len(ticks) <= 9
    assert all(low <= tick <= low * factor for tick in ticks)
    assert ticks == sorted(set(ticks))


@LAWS
@given(st.floats(1e-3, 1e6), st.integers(2, 10))
def test_linear_ticks_are_round_and_few(high, max_ticks):
    """From 0, in equal steps of 1, 2 or 5 times a power of ten, never past the end."""
    ticks = linear_ticks(high, max_ticks)
    assert ticks[0] == 0 and len(ticks) <= max_ticks + 1 and ticks[-1] <= high * (1 + 1e-6)
    digits = {f"{tick:e}"[0] for tick in ticks[1:2]}
    assert digits <= {"1", "2", "5"}


def test_linear_ticks_of_an_hour():
    """58 minutes in six steps: every ten."""
    assert linear_ticks(58.4, 6) == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("values", "skewed"),
    [([1, 2, 3], False), ([0.01, 5], True), ([0.0, 1.0], False), ([], False), ([float("nan"), 1.0], False)],
)
def test_only_a_wide_spread_needs_a_logarithmic_axis(values, skewed):
    """Two orders of magnitude do, zeros and NaNs alone do not."""
    assert is_skewed(values) is skewed


def test_numbers_for_charts_are_short_and_valid_json():
    """Five digits, and null for what is not a number."""
    assert rounded([1.23456789, np.nan, 12345678.0]) == [1.2346, None, 12346000.0]


@LAWS
@given(
    st.dictionaries(st.integers(0, 99), st.sampled_from(["needs 10 of 8", "needs 9 of 8", "too long: 1,024", "other"]))
)
def test_reasons_that_differ_in_numbers_are_one_kind(reasons):
    """Every rejected request is in exactly one group, groups differ in words, and the largest comes first."""
    groups = group_reasons(reasons)
    assert sorted(i for _, ids in groups for i in ids) == sorted(reasons)
    assert len(groups) == len({reason.split(" ")[0] for reason in reasons.values()})
    assert [len(ids) for _, ids in groups] == sorted((len(ids) for _, ids in groups), reverse=True)
