"""Generated arrivals and lengths have the distributions that they claim, by theory and with fixed seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simserve.errors import ScenarioError
from simserve.request import IntColumn
from simserve.scenario.length_models import (
    FixedLength,
    LengthsConfig,
    LognormalLength,
    LognormalShape,
    UniformLength,
    UniformRange,
    ValuesLength,
)
from simserve.scenario.workload_models import (
    AllAtOnceArrivals,
    ArrivalsConfig,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
)
from simserve.workload.generate import arrival_times_ns, lengths

N = 20_000
P_VALUE = 1e-3  # with fixed seeds a test that passes always passes


def gaps_s(config: ArrivalsConfig, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.diff(arrival_times_ns(config, N, np.random.default_rng(seed))) / 1e9


def draw(config: LengthsConfig, n: int = N, seed: int = 0) -> IntColumn:
    return lengths(config, n, np.random.default_rng(seed))[0]


def test_poisson_gaps_are_exponential() -> None:
    """Kolmogorov–Smirnov against the exponential of mean 1/rate; the mean within five standard errors."""
    gaps = gaps_s(PoissonArrivals(process="poisson", rate_rps=8.0))
    assert stats.kstest(gaps, stats.expon(scale=1 / 8).cdf).pvalue > P_VALUE
    assert abs(gaps.mean() - 1 / 8) < 5 * (1 / 8) / math.sqrt(N)


@pytest.mark.parametrize("cv", [0.25, 1.0, 2.0])
def test_gamma_gaps_have_the_rate_and_the_cv(cv: float) -> None:
    """Gamma of shape 1/cv² and mean 1/rate: by KS, by the mean, and by the coefficient of variation.
    (At cv 3 one gap in eleven is below a nanosecond and KS would see the rounding.)"""
    gaps = gaps_s(GammaArrivals(process="gamma", rate_rps=4.0, cv=cv))
    assert stats.kstest(gaps, stats.gamma(cv**-2, scale=cv**2 / 4).cdf).pvalue > P_VALUE
    assert abs(gaps.mean() - 1 / 4) < 5 * cv / 4 / math.sqrt(N)
    kurtosis = 6 * cv**2  # excess; the variance of a sample variance is σ⁴ (2 + kurtosis) / n
    assert abs(gaps.var() / (cv / 4) ** 2 - 1) < 5 * math.sqrt((2 + kurtosis) / N)


def test_gamma_of_cv_one_is_poisson() -> None:
    """The exponential is the gamma distribution of shape 1: two samples, one law."""
    gamma = gaps_s(GammaArrivals(process="gamma", rate_rps=4.0, cv=1.0), seed=1)
    poisson = gaps_s(PoissonArrivals(process="poisson", rate_rps=4.0), seed=2)
    assert stats.ks_2samp(gamma, poisson).pvalue > P_VALUE


def test_counts_of_poisson_arrivals_have_equal_mean_and_variance() -> None:
    """The index of dispersion of counts is 1 for Poisson and about cv² for a burstier gamma process."""
    for cv, expected in ((1.0, 1.0), (2.0, 4.0)):
        times = arrival_times_ns(GammaArrivals(process="gamma", rate_rps=1.0, cv=cv), N, np.random.default_rng(3)) / 1e9
        counts = np.bincount((times // 50).astype(int))[:-1]
        assert counts.var() / counts.mean() == pytest.approx(expected, rel=0.35)


def test_constant_and_all_at_once_are_exact() -> None:
    """Request i at i / rate to the nanosecond; everybody at 0."""
    rng = np.random.default_rng(0)
    times = arrival_times_ns(ConstantArrivals(process="constant", rate_rps=3.0), 7, rng)
    assert times.tolist() == [round(i * 1e9 / 3) for i in range(7)]
    assert arrival_times_ns(AllAtOnceArrivals(process="all_at_once"), 3, rng).tolist() == [0, 0, 0]


@given(
    st.sampled_from(["poisson", "gamma", "constant"]),
    st.integers(1, 300),
    st.floats(1e-3, 1e6),
    st.integers(0, 2**32),
)
def test_arrivals_are_ordered_nanoseconds_from_zero(process: str, n: int, rate: float, seed: int) -> None:
    """Law: the first arrival is at 0, none goes back, and a longer workload begins with the shorter one."""
    config: ArrivalsConfig = {
        "poisson": PoissonArrivals(process="poisson", rate_rps=rate),
        "gamma": GammaArrivals(process="gamma", rate_rps=rate, cv=2.0),
        "constant": ConstantArrivals(process="constant", rate_rps=rate),
    }[process]
    times = arrival_times_ns(config, n, np.random.default_rng(seed))
    assert times.dtype == np.int64
    assert (len(times), times[0]) == (n, 0)
    assert (np.diff(times) >= 0).all()
    longer = arrival_times_ns(config, n + 5, np.random.default_rng(seed))
    assert (longer[:n] == times).all()


def test_arrivals_that_would_take_decades_are_refused() -> None:
    """Nanoseconds in 64 bits end after 292 years; the sentence names the rate."""
    with pytest.raises(
        ScenarioError, match=r"^workload.arrivals.rate_rps: the last of 100 requests must arrive within"
    ):
        arrival_times_ns(ConstantArrivals(process="constant", rate_rps=1e-8), 100, np.random.default_rng(0))


def test_uniform_covers_both_bounds_evenly() -> None:
    """Chi-squared over every whole number from low to high, both included."""
    drawn = draw(UniformLength(uniform=UniformRange(low=3, high=12)))
    counts = np.bincount(drawn, minlength=13)
    assert counts[:3].sum() == 0
    assert stats.chisquare(counts[3:]).pvalue > P_VALUE


@pytest.mark.parametrize(("mean", "sigma"), [(200.0, 0.5), (600.0, 1.0), (1000.0, 0.0)])
def test_lognormal_mean_is_the_arithmetic_mean(mean: float, sigma: float) -> None:
    """Without a cut the sample mean is ``mean`` (not exp of the log's mean): its standard error is
    mean · √(e^{σ²} − 1) / √n; and the logarithm's standard deviation is sigma."""
    drawn = draw(LognormalLength(lognormal=LognormalShape(mean=mean, sigma=sigma)))
    standard_error = mean * math.sqrt(math.expm1(sigma**2)) / math.sqrt(N)
    assert abs(drawn.mean() - mean) <= 5 * standard_error + 0.5
    assert abs(np.log(drawn).std() - sigma) < 5 * sigma / math.sqrt(2 * N) + 0.01


def test_lognormal_is_lognormal() -> None:
    """KS of long lengths (where rounding to whole tokens is invisible) against scipy's lognormal."""
    drawn = draw(LognormalLength(lognormal=LognormalShape(mean=1e7, sigma=0.7)))
    assert stats.kstest(drawn, stats.lognorm(0.7, scale=1e7 * math.exp(-(0.7**2) / 2)).cdf).pvalue > P_VALUE


def test_the_cut_at_max_is_counted() -> None:
    """A draw beyond ``max`` becomes ``max``; about as many as the survival function says."""
    shape = LognormalShape(mean=100.0, sigma=1.0, max=200)
    drawn, num_cut = lengths(LognormalLength(lognormal=shape), N, np.random.default_rng(0))
    beyond = stats.lognorm(1.0, scale=100 * math.exp(-0.5)).sf(200.5)
    assert drawn.max() == 200
    assert num_cut == pytest.approx(N * beyond, abs=5 * math.sqrt(N * beyond))


@given(
    st.one_of(
        st.builds(FixedLength, fixed=st.integers(1, 2**31 - 1)),
        st.builds(
            lambda low, extra: UniformLength(uniform=UniformRange(low=low, high=low + extra)),
            st.integers(1, 2**30),
            st.integers(0, 2**30 - 1),
        ),
        st.builds(
            lambda mean, sigma: LognormalLength(lognormal=LognormalShape(mean=mean, sigma=sigma)),
            st.floats(1e-6, 2**31 - 1),
            st.floats(0, 10),
        ),
        st.builds(ValuesLength, values=st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=9)),
    ),
    st.integers(1, 50),
    st.integers(0, 2**32),
)
def test_lengths_are_whole_tokens_of_at_least_one(config: LengthsConfig, n: int, seed: int) -> None:
    """Law: any distribution at any extreme gives n lengths from 1 to 2³¹ − 1."""
    drawn = draw(config, n, seed)
    assert (drawn.dtype, len(drawn)) == (np.int64, n)
    assert drawn.min() >= 1
    assert drawn.max() <= 2**31 - 1


@given(st.lists(st.integers(1, 99), min_size=1, max_size=12), st.integers(0, 4), st.integers(0, 2**32))
def test_values_are_used_equally_often(values: list[int], rounds: int, seed: int) -> None:
    """Law: after k whole rounds each entry was used k times, shuffled or not, so totals are exact."""
    n = len(values) * rounds
    shuffled = draw(ValuesLength(values=values), n, seed).tolist()
    listed = draw(ValuesLength(values=values, shuffle=False), n, seed).tolist()
    assert sorted(shuffled) == sorted(listed) == sorted(values * rounds)
    assert listed == values * rounds


def test_values_are_shuffled_by_the_seed() -> None:
    """Every order is possible: over many seeds the first of four values is each of them equally often."""
    firsts = [draw(ValuesLength(values=[1, 2, 3, 4]), 4, seed)[0] for seed in range(2000)]
    assert stats.chisquare(np.bincount(firsts, minlength=5)[1:]).pvalue > P_VALUE
