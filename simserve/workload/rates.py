"""Arrivals at a changing rate, by operational time: gaps of mean 1 are laid end to end, and the clock that they are
read off runs at the rate, Λ(t) = ∫ rate. Any renewal process keeps its law inside a window of constant rate, and with
cv 1 the whole is the inhomogeneous Poisson process of that rate, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simserve.errors import ScenarioError
from simserve.scenario.arrival_models import BurstArrivals, DiurnalArrivals, GapKeys, WindowedArrivals

FloatColumn = npt.NDArray[np.float64]
VaryingArrivals = WindowedArrivals | DiurnalArrivals | BurstArrivals
STEPS_OF_A_DAY = 96
MAX_BURSTS = 5_000_000


@dataclass(frozen=True)
class Windows:
    """Stretches of constant rate, one after the other, that repeat: when each ends, and Λ there."""

    end_s: FloatColumn
    end_count: FloatColumn  # expected arrivals since the start

    @classmethod
    def of(cls, durations_s: FloatColumn, rates_rps: FloatColumn) -> Windows:
        return cls(durations_s.cumsum(), (durations_s * rates_rps).cumsum())

    def times_s(self, counts: FloatColumn) -> FloatColumn:
        """When Λ first goes beyond each of the counts."""
        with np.errstate(over="ignore", invalid="ignore"):  # rates next to nothing: the caller sees a NaN
            cycle, rest = np.divmod(counts, self.end_count[-1])
        begin_s, begin = self._begins(self.end_s), self._begins(self.end_count)
        i = np.minimum(np.searchsorted(self.end_count, rest, side="right"), len(self.end_count) - 1)
        share = (rest - begin[i]) / (self.end_count[i] - begin[i])
        times: FloatColumn = cycle * self.end_s[-1] + begin_s[i] + share * (self.end_s[i] - begin_s[i])
        return times

    def window_at(self, count: float) -> tuple[int, float]:
        """The window where Λ goes beyond ``count``, and Λ at its end."""
        cycle, rest = divmod(count, float(self.end_count[-1]))
        i = min(int(np.searchsorted(self.end_count, rest, side="right")), len(self.end_count) - 1)
        return i, cycle * float(self.end_count[-1]) + float(self.end_count[i])

    @staticmethod
    def _begins(ends: FloatColumn) -> FloatColumn:
        return np.concatenate([[0.0], ends[:-1]])


def unit_gaps(law: str, cv: float, count: int, rng: np.random.Generator) -> FloatColumn:
    """Gaps of mean 1 and the given cv."""
    if law == "gamma":
        return rng.gamma(cv**-2, cv**2, count)
    shape = weibull_shape(cv)
    return rng.weibull(shape, count) / math.gamma(1 + 1 / shape)


def weibull_shape(cv: float) -> float:
    """The shape k whose cv² is Γ(1 + 2/k) / Γ(1 + 1/k)² − 1, by bisection: the cv falls with k, and is 1 at k = 1."""
    low, high = 0.05, 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)
        low, high = (middle, high) if math.expm1(log_ratio) > cv * cv else (low, middle)
    return math.sqrt(low * high)


def varying_times_s(config: VaryingArrivals, num_requests: int, rng: np.random.Generator) -> FloatColumn:
    """Arrival times in seconds, in order, the first as soon as anybody comes.

    Raises ScenarioError for more bursts than memory can hold.
    """
    if isinstance(config, BurstArrivals):
        gaps_rng, bursts_rng = rng.spawn(2)
        counts = _counts(config, config.cv, num_requests, gaps_rng)
        return _bursts(config, float(counts[-1]), bursts_rng).times_s(counts)
    if isinstance(config, DiurnalArrivals):
        return _day(config).times_s(_counts(config, config.cv, num_requests, rng))
    durations = np.array([window.duration_s for window in config.windows])
    windows = Windows.of(durations, np.array([window.rate_rps for window in config.windows]))
    cvs = [config.cv if window.cv is None else window.cv for window in config.windows]
    if len(set(cvs)) == 1:
        return windows.times_s(_counts(config, cvs[0], num_requests, rng))
    return windows.times_s(_counts_by_window(config.gaps, cvs, windows, num_requests, rng))


def _counts(config: GapKeys, cv: float, num_requests: int, rng: np.random.Generator) -> FloatColumn:
    return np.concatenate([[0.0], unit_gaps(config.gaps, cv, num_requests - 1, rng).cumsum()])


def _counts_by_window(
    law: str, cvs: list[float], windows: Windows, num_requests: int, rng: np.random.Generator
) -> FloatColumn:
    """Λ at each arrival, where a gap has the cv of the window that it begins in. Each visit to a window has random
    numbers of its own, so that how many are drawn at once changes nothing."""
    parts, position, num_left = [np.zeros(1)], 0.0, num_requests - 1
    while num_left > 0:
        i, end = windows.window_at(position)
        visit, counts = rng.spawn(1)[0], np.zeros(0)
        while len(counts) < num_left and (not len(counts) or counts[-1] < end):
            begin = counts[-1] if len(counts) else position
            more = begin + unit_gaps(law, cvs[i], math.ceil(1.2 * max(0.0, end - begin)) + 8, visit).cumsum()
            counts = np.concatenate([counts, more])
        counts = counts[: min(num_left, int(np.searchsorted(counts, end)) + 1)]
        parts.append(counts)
        num_left -= len(counts)
        position = float(counts[-1])
    return np.concatenate(parts)


def _day(config: DiurnalArrivals) -> Windows:
    """Each step has the mean of the cosine over it, so that a period's arrivals are exactly rate · period."""
    edges = 2 * np.pi * (np.linspace(0, 1, STEPS_OF_A_DAY + 1) - config.peak_s / config.period_s)
    cosine = np.diff(np.sin(edges)) / (2 * np.pi / STEPS_OF_A_DAY)
    rates = config.rate_rps * np.maximum(1 + config.amplitude * cosine, 0.0)
    return Windows.of(np.full(STEPS_OF_A_DAY, config.period_s / STEPS_OF_A_DAY), rates)


def _bursts(config: BurstArrivals, last_count: float, rng: np.random.Generator) -> Windows:
    """Quiet and bursts by turns, as many as reach beyond ``last_count``; the first is quiet."""
    pair_s = config.mean_quiet_s + config.mean_burst_s
    quiet_rps = config.rate_rps * pair_s / (config.mean_quiet_s + config.factor * config.mean_burst_s)
    rates = np.array([quiet_rps, config.factor * quiet_rps])
    lengths, reached = np.zeros((0, 2)), 0.0
    while reached <= last_count:
        expected = 1.1 * (last_count - reached) / max(config.rate_rps * pair_s, 1e-300) + 16
        if len(lengths) + expected > MAX_BURSTS:
            raise ScenarioError(
                f"workload.arrivals: must not need more than {MAX_BURSTS:,} bursts (got one in {pair_s:g} s at rate "
                f"{config.rate_rps:g}); make mean_burst_s and mean_quiet_s longer"
            )
        more = rng.exponential(1.0, (math.ceil(expected), 2)) * [config.mean_quiet_s, config.mean_burst_s]
        lengths = np.concatenate([lengths, more])
        reached = float((lengths @ rates).sum())
    return Windows.of(lengths.ravel(), np.tile(rates, len(lengths)))
