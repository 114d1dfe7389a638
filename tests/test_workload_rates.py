"""Rates that change: windows, days and bursts, against the theory of the processes that they claim to be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simserve.errors import ScenarioError
from simserve.knee.load_axis import load_axis
from simserve.scenario import GeneratedWorkload, parse_scenario
from simserve.scenario.workload_models import ArrivalsConfig
from simserve.workload.generate import arrival_times_ns, arrival_times_s, mean_rate_rps, with_rate_scale
from simserve.workload.rates import Windows, weibull_shape
from tests.scenario_builders import small

P_VALUE = 1e-3  # with fixed seeds a test that passes always passes
FloatColumn = npt.NDArray[np.float64]


def arrivals(**section: Any) -> ArrivalsConfig:
    workload = parse_scenario(small(workload__arrivals=section), "s").workload
    assert isinstance(workload, GeneratedWorkload)
    assert workload.arrivals is not None
    return workload.arrivals


def times(config: ArrivalsConfig, n: int, seed: int = 0) -> FloatColumn:
    return arrival_times_s(config, n, np.random.default_rng(seed))


def windows(*rows: tuple[float, ...], **more: Any) -> ArrivalsConfig:
    names = ("duration_s", "rate_rps", "cv")
    return arrivals(process="windows", windows=[dict(zip(names, row, strict=False)) for row in rows], **more)


DAY = arrivals(process="diurnal", rate_rps=2.0, amplitude=0.8, period_s=1000.0, peak_s=300.0)
BURSTS = arrivals(process="bursts", rate_rps=5.0, factor=10.0, mean_burst_s=2.0, mean_quiet_s=8.0)
TWO = windows((100.0, 1.0), (50.0, 8.0))
THREE = windows((40.0, 3.0, 0.3), (10.0, 0.0), (60.0, 2.0, 4.0), gaps="weibull")


@pytest.mark.parametrize("cv", [0.05, 0.5, 1.0, 2.0, 20.0])
def test_the_weibull_shape_has_the_cv(cv: float) -> None:
    """By scipy's own moments; shape 1 is the exponential."""
    law = stats.weibull_min(weibull_shape(cv))
    assert law.std() / law.mean() == pytest.approx(cv, rel=1e-6)
    assert weibull_shape(1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_weibull_gaps_are_weibull(cv: float) -> None:
    """Kolmogorov–Smirnov against scipy's law of that cv and mean 1/rate."""
    gaps = np.diff(times(arrivals(process="weibull", rate_rps=4.0, cv=cv), 20_000))
    shape = weibull_shape(cv)
    assert stats.kstest(gaps, stats.weibull_min(shape, scale=0.25 / math.gamma(1 + 1 / shape)).cdf).pvalue > P_VALUE


@given(st.sampled_from([DAY, BURSTS, TWO, THREE]), st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**32))
def test_arrivals_go_forward_and_a_longer_workload_begins_with_the_shorter(
    config: ArrivalsConfig, n: int, more: int, seed: int
) -> None:
    """Law, to the bit, as for arrivals at a steady rate; n nanoseconds in order from 0."""
    found = arrival_times_ns(config, n, np.random.default_rng(seed))
    assert (len(found), found[0], found.dtype) == (n, 0, np.int64)
    assert (np.diff(found) >= 0).all()
    assert (arrival_times_ns(config, n + more, np.random.default_rng(seed))[:n] == found).all()


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 20)), min_size=1, max_size=6), st.floats(0, 1e4))
def test_the_clock_runs_at_the_rate(rows: list[tuple[float, float]], count: float) -> None:
    """Law: at the time of a count, ∫ rate is that count; summed here over whole cycles and a slow loop."""
    if sum(duration * rate for duration, rate in rows) < 1e-3:
        rows = [*rows, (1.0, 1.0)]
    found = float(Windows.of(*np.array(rows).T).times_s(np.array([count]))[0])
    period_s, per_period = sum(row[0] for row in rows), sum(duration * rate for duration, rate in rows)
    cycle = math.floor(found / period_s + 1e-12)
    left, reached = found - cycle * period_s, cycle * per_period
    for duration, rate in rows:
        reached += rate * min(max(left, 0.0), duration)
        left -= duration
    assert reached == pytest.approx(count, rel=1e-6, abs=1e-6)


def test_windows_of_cv_1_are_the_poisson_process_of_their_rate() -> None:
    """Over 200 cycles: counts in each half of each window are Poisson of its own mean (dispersion test), and places
    inside the windows are uniform."""
    found = times(TWO, 200 * 500)
    found = found[found < 150.0 * 190]
    cycle, place = np.divmod(found, 150.0)
    for begin, end, rate in ((0, 50, 1.0), (50, 100, 1.0), (100, 125, 8.0), (125, 150, 8.0)):
        inside = (place >= begin) & (place < end)
        counts = np.bincount(cycle[inside].astype(int), minlength=190)
        mean = rate * (end - begin)
        assert abs(counts.mean() - mean) < 5 * math.sqrt(mean / 190)
        dispersion = ((counts - mean) ** 2).sum() / mean  # chi-squared with 190 degrees of freedom
        assert P_VALUE < stats.chi2(190).cdf(dispersion) < 1 - P_VALUE
        assert stats.kstest((place[inside] - begin) / (end - begin), "uniform").pvalue > P_VALUE


def test_each_window_has_its_own_rate_and_cv() -> None:
    """Long windows: gaps inside them have the mean and the cv that they say; where the rate is 0 nobody comes."""
    config = windows((10_000.0, 3.0, 0.5), (500.0, 0.0), (10_000.0, 1.0, 3.0))
    found = times(config, 38_000)
    for begin, end, rate, cv in ((0, 10_000, 3.0, 0.5), (10_500, 20_500, 1.0, 3.0)):
        gaps = np.diff(found[(found > begin) & (found < end)])
        assert gaps.mean() == pytest.approx(1 / rate, rel=5 * cv / math.sqrt(len(gaps)))
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    assert not ((found > 10_000) & (found < 10_500)).any()


def test_a_window_of_nobody_at_the_start_delays_the_first() -> None:
    """The first arrival is as soon as anybody comes."""
    assert times(windows((30.0, 0.0), (10.0, 5.0)), 3)[0] == 30.0


def test_a_day_follows_its_cosine() -> None:
    """Arrivals by the time of day against the integral of rate (1 + a cos) over 20 parts of it, chi-squared; busiest at
    the peak, and as many a day as the mean says."""
    found = times(DAY, 200_000)
    whole = found[found < 99_000.0]
    assert abs(len(whole) - 198_000) < 5 * math.sqrt(198_000)
    edges = np.linspace(0, 1000.0, 21)
    counts = np.histogram(whole % 1000.0, edges)[0]
    angle = 2 * np.pi * (edges - 300.0) / 1000.0
    expected = np.diff(edges + 0.8 * 1000.0 / (2 * np.pi) * np.sin(angle))
    assert stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > P_VALUE
    assert abs(int(np.argmax(counts)) - 5.5) <= 1.5


def test_a_day_without_amplitude_is_a_steady_rate() -> None:
    """The same draws as gamma arrivals of that rate and cv, to rounding."""
    flat = arrivals(process="diurnal", rate_rps=3.0, amplitude=0.0, cv=2.0)
    steady = arrivals(process="gamma", rate_rps=3.0, cv=2.0)
    np.testing.assert_allclose(times(flat, 500, 4), times(steady, 500, 4), rtol=1e-9)


def test_bursts_have_the_mean_rate_and_the_dispersion_of_a_modulated_poisson_process() -> None:
    """Two-state MMPP (Fischer and Meier-Hellstern 1993): the index of dispersion of counts goes to
    1 + 2 σ₁σ₂ (λ₁ − λ₂)² / ((σ₁ + σ₂)² (λ₁σ₂ + λ₂σ₁))."""
    found = times(BURSTS, 400_000)
    whole = found[found < 75_000.0]
    quiet = 5.0 * 10 / (8 + 10 * 2)
    burst, leave_quiet, leave_burst = 10 * quiet, 1 / 8, 1 / 2
    product, both = leave_quiet * leave_burst, leave_quiet + leave_burst
    dispersion = 1 + 2 * product * (quiet - burst) ** 2 / (both**2 * (quiet * leave_burst + burst * leave_quiet))
    counts = np.histogram(whole, np.arange(0, 75_001, 100.0))[0]
    assert counts.mean() / 100 == pytest.approx(5.0, abs=5 * math.sqrt(5.0 * dispersion / 75_000))
    assert counts.var() / counts.mean() == pytest.approx(dispersion, rel=5 * math.sqrt(2 / len(counts)))


def test_bursts_of_factor_1_are_a_steady_rate() -> None:
    """A burst that is no busier than quiet changes nothing: gaps are exponential."""
    config = arrivals(process="bursts", rate_rps=5.0, factor=1.0, mean_burst_s=2.0, mean_quiet_s=8.0)
    assert stats.kstest(np.diff(times(config, 20_000)), stats.expon(scale=0.2).cdf).pvalue > P_VALUE


def test_too_many_bursts_are_refused() -> None:
    """A burst in a nanosecond at one request a second would take all memory."""
    config = arrivals(process="bursts", rate_rps=1.0, factor=2.0, mean_burst_s=1e-9, mean_quiet_s=1e-9)
    with pytest.raises(ScenarioError, match=r"^workload.arrivals: must not need more than 5,000,000 bursts"):
        times(config, 10)


def test_rates_next_to_nothing_are_refused() -> None:
    """Where even the arithmetic ends, the sentence is the one for any rate that takes decades."""
    for rate in (1e-9, 1e-300, 5e-324):
        rare = arrivals(process="diurnal", rate_rps=rate)
        with pytest.raises(ScenarioError, match=r"^workload.arrivals.rate_rps: the last of 99 requests must arrive wi"):
            arrival_times_ns(rare, 99, np.random.default_rng(0))
        rare = arrivals(process="bursts", rate_rps=rate, factor=2.0, mean_burst_s=1.0, mean_quiet_s=1.0)
        with pytest.raises(ScenarioError, match=r"^workload.arrivals"):
            arrival_times_ns(rare, 99, np.random.default_rng(0))
    rare = windows((10.0, 1e-7, 2.0), (10.0, 5e-324, 1.0))
    with pytest.raises(ScenarioError, match=r"^workload.arrivals.rate_rps: the last of 99 requests must arrive within"):
        arrival_times_ns(rare, 99, np.random.default_rng(0))


@pytest.mark.parametrize(("config", "rate"), [(DAY, 2.0), (BURSTS, 5.0), (TWO, 500 / 150)])
def test_scaled_rates_leave_the_clock_alone(config: ArrivalsConfig, rate: float) -> None:
    """Three times as many in the same windows, days and bursts."""
    assert mean_rate_rps(config) == pytest.approx(rate)
    assert mean_rate_rps(with_rate_scale(config, 3.0)) == pytest.approx(3 * rate)
    assert len(times(with_rate_scale(config, 3.0), 3000)) == 3000
    if config is TWO:
        found = times(with_rate_scale(config, 3.0), 15_000) % 150.0
        assert (found < 100.0).mean() == pytest.approx(0.2, abs=0.02)  # 300 of 1,500


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"process": "windows", "windows": []}, "s: workload.arrivals.windows: must not be empty"),
        (
            {"process": "windows", "windows": [{"duration_s": 5.0, "rate_rps": 0.0}]},
            "s: workload.arrivals: windows must expect at least 1e-06 requests in all, rate_rps · duration_s added up "
            "(got 0)",
        ),
        (
            {"process": "windows", "windows": [{"duration_s": 5.0, "rate_rps": 1.0, "cvv": 1.0}]},
            "s: workload.arrivals.windows[0]: unknown key 'cvv' (did you mean 'cv'?)",
        ),
        (
            {"process": "diurnal", "rate_rps": 1.0, "amplitude": 1.5},
            "s: workload.arrivals.amplitude: must be ≤ 1.0 (got 1.5)",
        ),
        (
            {"process": "bursts", "rate_rps": 1.0, "factor": 0.5, "mean_burst_s": 1.0, "mean_quiet_s": 1.0},
            "s: workload.arrivals.factor: must be ≥ 1.0 (got 0.5)",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(section: dict[str, Any], sentence: str) -> None:
    """Where, the rule, and what was given."""
    with pytest.raises(ScenarioError) as caught:
        arrivals(**section)
    assert str(caught.value).startswith(sentence)


def test_a_knee_turns_the_rate_of_tenants_and_not_of_windows() -> None:
    """One rate, or one scale of all, is what a knee turns; windows have neither."""
    rows = [{"duration_s": 1.0, "rate_rps": 1.0}]
    data = small(workload__arrivals={"process": "windows", "windows": rows})
    with pytest.raises(ScenarioError, match=r"^s: workload.arrivals.process: must have one rate to turn up \(got wind"):
        load_axis(data, "s")
    tenant = {key: value for key, value in data["workload"].items() if key != "num_requests"}
    axis = load_axis({"workload": {"num_requests": 5, "tenants": {"a": tenant}}}, "s", 1.0)
    assert (axis.key, axis.base_rps) == ("workload.rate_scale", 1.0)
