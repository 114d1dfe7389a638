"""Intervals cover what they should, and the calibration's part does not shrink with replications."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import sem, t

from simserve.sweep.pareto import pareto_front
from simserve.tasks.intervals import calibration_half_width, calibration_sd, interval

numbers = st.floats(-1e6, 1e6)


def test_t_intervals_cover_the_mean_in_95_of_100():
    """Normal samples of 5, 4,000 times: the true mean is inside in 95 % (binomial bound at 4 σ: ± 1.4 %)."""
    rng = np.random.default_rng(0)
    found = [interval(rng.normal(3.0, 2.0, 5).tolist()) for _ in range(4000)]
    covered = np.mean([each["low"] <= 3.0 <= each["high"] for each in found])
    assert covered == pytest.approx(0.95, abs=0.014)


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=20))
def test_the_interval_is_scipy_s(values):
    """Against scipy.stats: mean ± t(n − 1) · s / √n."""
    found = interval(values)
    half = t.ppf(0.975, len(values) - 1) * sem(values)
    assert found["value"] == pytest.approx(np.mean(values), abs=1e-6)
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half, rel=1e-9, abs=1e-6)
    assert (found["n"], found["calibration"]) == (len(values), 0.0)


def test_one_replication_has_no_interval_and_none_no_value():
    """What chance does is unknown from one run; replications without the metric are not counted."""
    assert interval([2.0], 0.5) == {"value": 2.0, "low": None, "high": None, "n": 1, "calibration": 0.0}
    assert interval([]) == interval([None, None])
    assert interval([None])["value"] is None
    assert interval([1.0, None, 3.0])["n"] == 2


def test_intervals_shrink_with_replications_down_to_the_calibration_s_part():
    """Half-width² = chance² + (t(n) σ)²: with ever more replications it tends to 1.96 σ, and the share to 1."""
    rng = np.random.default_rng(1)
    widths, shares = [], []
    for n in (5, 50, 5000):
        found = interval(rng.normal(0, 1, n).tolist(), calibration_sd=0.1)
        widths.append((found["high"] - found["low"]) / 2)
        shares.append(found["calibration"])
    assert widths[0] > widths[1] > widths[2] > 0.196
    assert widths[2] == pytest.approx(0.196, rel=0.02)
    assert shares[0] < shares[1] < shares[2] < 1.0
    assert shares[2] == pytest.approx(0.1 * t.ppf(0.975, 5000) / widths[2])


def test_a_calibration_that_is_known_exactly_covers_exactly():
    """Metrics with chance (s = 1, n = 8) and a common error of the step times (σ = 0.5): the widened interval holds the
    truth in about 95 % of 4,000 studies (a sum of a t and a normal part, so between 94 and 97)."""
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(4000):
        values = rng.normal(0, 1, 8) + rng.normal(0, 0.5)
        found = interval(values.tolist(), calibration_sd=0.5, num_draws=10**6)
        inside += found["low"] <= 0 <= found["high"]
    assert 0.94 <= inside / 4000 <= 0.97


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_calibration_that_is_known_from_few_draws_covers_all_the_same(n):
    """The truth lies a normal draw away, of a spread that n draws tell: inside in 95 % of 4,000 (± 1.4 % at 4 σ), where
    1.96 times the spread holds it in 81 % (n = 2) to 91 % (n = 8)."""
    rng = np.random.default_rng(n)
    inside = narrow = 0
    for _ in range(4000):
        sd = calibration_sd([0.0] * n, rng.normal(0, 0.5, n).tolist())
        half, error = calibration_half_width(sd, n), abs(rng.normal(0, 0.5))
        inside += error <= half
        narrow += error <= 1.96 * sd
    assert inside / 4000 == pytest.approx(0.95, abs=0.014)
    assert narrow / 4000 < 0.93


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), max_size=10), numbers)
def test_calibration_sd_is_the_root_mean_square_of_paired_differences(pairs, shift):
    """A draw that moves every run by the same amount is that amount of error; pairs with a gap are left out."""
    measured = [a for a, _ in pairs]
    expected = math.sqrt(np.mean([(b - a) ** 2 for a, b in pairs])) if pairs else 0.0
    assert calibration_sd(measured, [b for _, b in pairs]) == pytest.approx(expected)
    assert calibration_sd([*measured, None], [*[b for _, b in pairs], 1.0]) == pytest.approx(expected)
    if measured:
        assert calibration_sd(measured, [a + shift for a in measured]) == pytest.approx(abs(shift), abs=1e-6)


coordinates = st.one_of(st.none(), st.integers(0, 6).map(float))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(coordinates, coordinates), max_size=14))
def test_the_front_is_what_nothing_dominates(points):
    """By definition, all pairs compared: on the front exactly when no other is at least as good in both and better in
    one; points without a number are not on it."""

    def dominates(a, b):
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    known = [point for point in points if None not in point]
    wanted = [None not in point and not any(dominates(other, point) for other in known) for point in points]
    assert pareto_front(points) == wanted


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=14), st.randoms())
def test_the_front_does_not_depend_on_order(points, random):
    """Whoever finishes first: the same points are on the front, and there is always one."""
    shuffled = points[:]
    random.shuffle(shuffled)
    on_front = {point for point, is_on in zip(points, pareto_front(points), strict=True) if is_on}
    assert on_front
    assert on_front == {point for point, is_on in zip(shuffled, pareto_front(shuffled), strict=True) if is_on}
