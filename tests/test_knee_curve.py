"""The knee of a latency curve: Kneedle against closed forms, and an interval that says how sure replications are."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.knee.bootstrap import bootstrap_interval
from simserve.knee.curve import RANGE, curve_knee, smooth
from simserve.knee.smoothing import smoothing_matrix
from simserve.tasks.intervals import t_quantile

RHO = 1 - np.geomspace(1 - RANGE[0], 1 - RANGE[1], 12)


def mm1(rho, service_s=1.0):
    """Mean sojourn time of M/M/1."""
    return service_s / (1 - np.asarray(rho))


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.95), (0.1, 0.9), (0.2, 0.8)])
@pytest.mark.parametrize("service_s", [0.01, 3.0])
def test_the_knee_of_mm1_is_where_its_tangent_is_parallel_to_the_chord(low, high, service_s):
    """d/dρ 1/(1−ρ) = 1/(1−ρ)², and the chord's slope is 1 / ((1−a)(1−b)): 1 − ρ = sqrt((1−a)(1−b))."""
    knee = curve_knee(RHO, [mm1(RHO, service_s)], low, high)
    assert knee["value"] == pytest.approx(1 - math.sqrt((1 - low) * (1 - high)), abs=0.004)
    assert (knee["low"], knee["high"], knee["n"]) == (None, None, 1)


def test_the_knee_is_in_units_of_load():
    """A service time of 0.02 s saturates at 50 requests/s: the knee is 50 times that of utilisation."""
    knee = curve_knee(50 * RHO, [mm1(RHO)])
    assert knee["value"] == pytest.approx(50 * (1 - math.sqrt(0.95 * 0.05)), rel=0.005)


SPACINGS = {"even": np.linspace, "towards saturation": lambda a, b, n: 1 - np.geomspace(1 - a, 1 - b, n)}


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("num_loads", [5, 12, 100])
def test_the_knee_of_mm1_needs_few_loads_and_bears_many(num_loads, spacing):
    """Five loads are enough for an exact curve; of one noisy curve (5 % at every load, each by itself) the knee is as
    good as the noise lets it be, also with a hundred; no spacing is preferred."""
    rho = SPACINGS[spacing](*RANGE, num_loads)
    truth = 1 - math.sqrt(0.95 * 0.05)
    assert curve_knee(rho, [mm1(rho)])["value"] == pytest.approx(truth, abs=0.002)
    noisy = [mm1(rho) * np.exp(np.random.default_rng(seed).normal(0, 0.05, num_loads)) for seed in range(8)]
    errors = [curve_knee(rho, [latencies])["value"] - truth for latencies in noisy]
    assert max(map(abs, errors)) < 0.02 and abs(np.mean(errors)) < 0.006


@pytest.mark.parametrize("num_loads", [5, 12, pytest.param(100, marks=pytest.mark.validation)])
def test_the_interval_covers_the_knee_with_noise_between_loads(num_loads):
    """Of 30 sets of 8 replications with 5 % noise at least 25 cover (83 % is three errors from 95 %), and the interval
    is narrower than 0.02."""
    rho = 1 - np.geomspace(0.95, 0.05, num_loads)
    sets = [mm1(rho) * np.exp(np.random.default_rng(s).normal(0, 0.05, (8, num_loads))) for s in range(30)]
    knees = [curve_knee(rho, rows, seed=1) for rows in sets]
    assert sum(knee["low"] <= 1 - math.sqrt(0.95 * 0.05) <= knee["high"] for knee in knees) >= 25
    assert np.mean([knee["high"] - knee["low"] for knee in knees]) < 0.02


def test_more_loads_make_the_knee_better():
    """One noisy curve of 100 loads is nearer the knee of M/D/1's sojourn time, (2 − ρ) / (2 (1 − ρ)), than one of 5.
    Its derivative is 1 / (2 (1 − ρ)²), so the knee is again at 1 − ρ = sqrt((1 − a)(1 − b))."""

    def spread(num_loads):
        rho = np.linspace(*RANGE, num_loads)
        truth = (2 - rho) / (2 * (1 - rho))
        noise = [np.random.default_rng(seed).normal(0, 0.05, num_loads) for seed in range(12)]
        knees = [curve_knee(rho, [truth * np.exp(each)])["value"] for each in noise]
        return np.sqrt(np.mean((np.array(knees) - 1 + math.sqrt(0.95 * 0.05)) ** 2))

    assert spread(100) < 0.7 * spread(5) and spread(100) < 0.01


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 3), min_size=4, max_size=20), st.floats(-2, 2), st.floats(0.1, 5))
def test_smoothing_leaves_straight_lines_alone(gaps, slope, level):
    """Whatever the loads: a line is not rough, so its values come back; weights and roughness do not matter."""
    x = np.cumsum([0.0, *gaps])
    matrix = smoothing_matrix(x, np.random.default_rng(0).uniform(0.5, 2, len(x)))
    line = level + slope * x
    assert matrix @ line == pytest.approx(line, rel=1e-5, abs=1e-5 * (level + abs(slope) * x[-1]))


def test_smoothing_takes_noise_away_and_keeps_a_bend():
    """Noise shrinks at least twofold (60 points); without noise a sine is kept to a percent."""
    x = np.linspace(0, 1, 60)
    wave = 2 + np.sin(6 * x)
    noise = np.random.default_rng(2).normal(0, 0.1, 60)
    left = smoothing_matrix(x, wave + noise) @ (wave + noise) - wave
    assert np.std(left) < np.std(noise) / 2
    assert smoothing_matrix(x, wave) @ wave == pytest.approx(wave, rel=0.01)


def test_a_hockey_stick_has_its_knee_at_the_corner():
    """Closed loop: flat until every slot is busy, then proportional to the clients; the corner is the knee."""
    clients = np.arange(1, 33, dtype=float)
    knee = curve_knee(clients, [np.maximum(1.0, clients / 8)], has_corner=True)
    assert knee["value"] == pytest.approx(8, abs=0.3)


@pytest.mark.parametrize("latencies", [[1.0] * 12, 2 - RHO, np.sqrt(RHO)])
def test_a_curve_that_never_turns_up_has_no_knee(latencies):
    """Constant, falling, and concave curves."""
    assert curve_knee(RHO, [latencies])["value"] is None


def test_a_curve_that_falls_first_is_looked_at_from_its_lowest_point():
    """Waiting for a group to fill costs a / ρ: the knee is that of the part right of the least, as by itself."""
    loads = np.linspace(0.05, 0.95, 60)
    latencies = 0.3 / loads + mm1(loads)
    least = int(latencies.argmin())
    alone = curve_knee(loads[least:], [latencies[least:]])["value"]
    assert curve_knee(loads, [latencies])["value"] == pytest.approx(alone, abs=0.01)
    assert alone > loads[least]


def test_too_few_loads_have_no_knee():
    """Three points are a line and a guess; loads where some replication has no latency do not count."""
    assert curve_knee(RHO[:3], [mm1(RHO[:3])])["value"] is None
    assert curve_knee(RHO[:4], [[1.0, 2.0, None, 9.0]])["value"] is None
    assert curve_knee([], [[]])["value"] is None


def test_a_missing_latency_leaves_its_load_out():
    """The others still tell the knee."""
    latencies = list(mm1(RHO))
    latencies[3] = None
    assert curve_knee(RHO, [latencies])["value"] == pytest.approx(1 - math.sqrt(0.95 * 0.05), abs=0.01)


def replications(n, seed=0):
    """M/M/1 curves, each of a server that is a few percent faster or slower than planned."""
    return mm1(RHO * np.random.default_rng(seed).normal(1, 0.01, (n, 1)))


def test_the_interval_shrinks_with_replications():
    """As 1/sqrt(n), Student's t apart: 4 to 64 replications narrow it at least threefold, over three sets of each."""

    def width(n):
        knees = [curve_knee(RHO, replications(n, seed)) for seed in range(3)]
        return sum(knee["high"] - knee["low"] for knee in knees)

    assert width(4) > 3 * width(64) and width(4) > width(16) > width(64)


def test_the_interval_covers_the_knee():
    """Of 30 sets of 8 replications, at least 25 cover the noiseless knee (95 % expected; 83 % is three errors off)."""
    truth = curve_knee(RHO, [mm1(RHO)])["value"]
    knees = [curve_knee(RHO, replications(8, seed)) for seed in range(1, 31)]
    assert sum(knee["low"] <= truth <= knee["high"] for knee in knees) >= 25


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=9), st.floats(0.01, 100), st.floats(0.01, 100))
def test_units_do_not_matter(rises, time_unit, load_unit):
    """On any convex curve: latency in other units leaves the knee, load in other units scales it."""
    latencies = 1 + np.cumsum([0.0, *sorted(rises), 30.0])
    loads = np.arange(1.0, len(latencies) + 1)
    plain = curve_knee(loads, [latencies])["value"]
    assert 1 < plain < loads[-1]
    scaled = curve_knee(loads * load_unit, [latencies * time_unit])["value"]
    assert scaled == pytest.approx(plain * load_unit, rel=0.01)


def test_the_smooth_curve_goes_through_its_points_and_never_leaves_their_range():
    """PCHIP interpolates and is monotone between points; outside it holds the last."""
    x, y = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.0, 1.1, 30.0, 4.0])
    assert smooth(x, y, x) == pytest.approx(y)
    fine = smooth(x, y, np.linspace(0, 10, 200))
    assert fine.min() >= 1 - 1e-9 and fine.max() <= 30 + 1e-9 and fine[0] == pytest.approx(1)


def test_the_bootstrap_interval_of_a_mean_is_student_s():
    """For the mean itself, resampling must give mean ± t · s / sqrt(n)."""
    values = np.random.default_rng(5).normal(10, 2, (12, 1))
    found = bootstrap_interval(values, lambda mean: float(mean[0]), 0, 20_000)
    half_width = t_quantile(11) * values.std(ddof=1) / math.sqrt(12)
    assert found["value"] == pytest.approx(values.mean())
    assert (found["high"] - found["low"]) / 2 == pytest.approx(half_width, rel=0.03)


def test_the_bootstrap_leaves_out_draws_without_a_figure_and_keeps_its_bounds():
    """A statistic that some draws lack still has an interval, cut to what is possible."""
    values = np.arange(8.0).reshape(-1, 1)
    found = bootstrap_interval(values, lambda mean: float(mean[0]) if mean[0] > 3 else None, 0, 200, (3.2, 3.6))
    assert (found["low"], found["high"]) == (3.2, 3.6)
    assert bootstrap_interval(values, lambda mean: None, 0, 10)["value"] is None
