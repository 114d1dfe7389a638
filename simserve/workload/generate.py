"""Arrivals and lengths by distribution, vectorised. Each takes a generator of its own: see ``build``."""

from __future__ import annotations

import math

import numpy as np

from simserve.errors import ScenarioError
from simserve.request import IntColumn
from simserve.scenario.arrival_models import WeibullArrivals, WindowedArrivals
from simserve.scenario.fields import MAX_SECONDS, MAX_TOKENS
from simserve.scenario.length_models import (
    FixedLength,
    LengthsConfig,
    LognormalLength,
    LognormalShape,
    QuantilesLength,
    UniformLength,
    ValuesLength,
)
from simserve.scenario.workload_models import (
    AllAtOnceArrivals,
    ArrivalsConfig,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
)
from simserve.workload.rates import FloatColumn, unit_gaps, varying_times_s


def arrival_times_ns(config: ArrivalsConfig, num_requests: int, rng: np.random.Generator) -> IntColumn:
    """Arrival times in nanoseconds, the first at 0, in order.

    Raises ScenarioError when the last would arrive after more than 10⁹ seconds.
    """
    times_s = arrival_times_s(config, num_requests, rng)
    if not times_s[-1] <= MAX_SECONDS:  # NaN where the rate is next to nothing
        raise ScenarioError(
            f"workload.arrivals.rate_rps: the last of {num_requests:,} requests must arrive within {MAX_SECONDS:.0e} "
            f"seconds (got rate {mean_rate_rps(config):g}, which takes {times_s[-1]:.3g}); raise the rate"
        )
    return np.rint(times_s * 1e9).astype(np.int64)


def arrival_times_s(config: ArrivalsConfig, num_requests: int, rng: np.random.Generator) -> FloatColumn:
    """Arrival times in seconds, in order, the first at 0 (or as soon as the rate is above 0); at a steady rate the gaps
    are independent with mean 1 / rate_rps."""
    num_gaps = num_requests - 1
    match config:
        case AllAtOnceArrivals():
            return np.zeros(num_requests)
        case ConstantArrivals():
            return np.arange(num_requests) / config.rate_rps
        case PoissonArrivals():
            gaps_s = rng.exponential(1 / config.rate_rps, num_gaps)
        case GammaArrivals():
            shape = config.cv**-2
            gaps_s = rng.gamma(shape, 1 / (shape * config.rate_rps), num_gaps)
        case WeibullArrivals():
            gaps_s = unit_gaps("weibull", config.cv, num_gaps, rng) / config.rate_rps
        case _:
            return varying_times_s(config, num_requests, rng)
    return np.concatenate([[0.0], gaps_s.cumsum()])


def mean_rate_rps(config: ArrivalsConfig) -> float:
    """Arrivals per second in the long run; infinite when everybody comes at once."""
    if isinstance(config, WindowedArrivals):
        count = sum(window.rate_rps * window.duration_s for window in config.windows)
        return count / sum(window.duration_s for window in config.windows)
    return math.inf if isinstance(config, AllAtOnceArrivals) else config.rate_rps


def with_rate_scale(config: ArrivalsConfig, scale: float) -> ArrivalsConfig:
    """The same arrivals at so many times the rate; days, windows and bursts keep their length."""
    if isinstance(config, AllAtOnceArrivals):
        return config
    if isinstance(config, WindowedArrivals):
        scaled = [each.model_copy(update={"rate_rps": each.rate_rps * scale}) for each in config.windows]
        return config.model_copy(update={"windows": scaled})
    return config.model_copy(update={"rate_rps": config.rate_rps * scale})


def lengths(config: LengthsConfig, num_requests: int, rng: np.random.Generator) -> tuple[IntColumn, int]:
    """Lengths in tokens, at least 1, and how many draws were cut to the distribution's ``max``."""
    match config:
        case FixedLength():
            return np.full(num_requests, config.fixed, np.int64), 0
        case UniformLength():
            low, high = config.uniform.low, config.uniform.high
            return rng.integers(low, high, num_requests, dtype=np.int64, endpoint=True), 0
        case ValuesLength():
            values = np.array(config.values, np.int64)
            return np.resize(rng.permutation(values) if config.shuffle else values, num_requests), 0
        case QuantilesLength():
            return at_shares(config, rng.random(num_requests))
    shape = config.lognormal
    return _cut(np.rint(rng.lognormal(log_mean(shape), shape.sigma, num_requests)), shape)


def at_shares(
    config: FixedLength | UniformLength | QuantilesLength | LognormalLength, shares: FloatColumn
) -> tuple[IntColumn, int]:
    """The length that so large a share of a distribution does not exceed, for shares from 0 to 1, and how many were cut
    to its ``max``."""
    match config:
        case FixedLength():
            return np.full(len(shares), config.fixed, np.int64), 0
        case UniformLength():
            low, high = config.uniform.low, config.uniform.high
            return np.minimum(low + (shares * (high - low + 1)).astype(np.int64), high), 0
        case QuantilesLength():
            places, tokens = np.array(config.table()).T
            return np.rint(np.exp(np.interp(shares, places, np.log(tokens)))).astype(np.int64), 0
    from scipy import special

    shape = config.lognormal
    with np.errstate(over="ignore"):
        draws = np.rint(np.exp(log_mean(shape) + shape.sigma * special.ndtri(shares.clip(2.0**-54, 1 - 2.0**-53))))
    return _cut(draws, shape)


def log_mean(shape: LognormalShape) -> float:
    """exp(mu + sigma²/2) is the mean of a lognormal, whence mu."""
    return math.log(shape.mean) - shape.sigma**2 / 2


def longest(shape: LognormalShape) -> int:
    """The length that longer draws are cut to."""
    return shape.max if shape.max is not None else MAX_TOKENS


def _cut(draws: FloatColumn, shape: LognormalShape) -> tuple[IntColumn, int]:
    limit = longest(shape)
    return np.clip(draws, 1, limit).astype(np.int64), int((draws > limit).sum())
