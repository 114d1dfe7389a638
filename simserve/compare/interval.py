"""The interval of a ratio B/A from its bootstrap draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from simserve.compare.resample import NUM_DRAWS
from simserve.distributions import FloatColumn

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """Bounds of a ratio; None where there is no bound (a draw divides by zero)."""

    low: float | None
    high: float | None


def ratio_interval(ratio: float, a: FloatColumn, b: FloatColumn, num_blocks: float) -> Interval:
    """95 % percentile interval of ``b / a`` around the observed ``ratio``; element 0 of the draws is the run itself.

    On the log scale, and by rank, so that A/B has the reciprocal bounds. Bounds are expanded for few blocks as in
    Hesterberg (The American Statistician 69, 2015), with blocks in the place of observations.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(b) - np.log(a)
    if not math.isfinite(logs[0]):
        return Interval(None, None)
    drawn = np.nan_to_num(logs[1:], nan=0.0, posinf=np.inf, neginf=-np.inf)  # zero over zero: no difference
    drawn = np.sort(drawn + (math.log(ratio) - logs[0]))
    k = tail_rank(num_blocks)
    return Interval(_bound(drawn[k]), _bound(drawn[NUM_DRAWS - 1 - k]))


def tail_rank(num_blocks: float) -> int:
    """How many of the sorted draws lie outside on each side."""
    n = max(2.0, num_blocks)
    expanded = math.sqrt(n / (n - 1)) * float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return max(0, math.floor(float(stats.norm.cdf(-expanded)) * (NUM_DRAWS + 1) + 1e-6) - 1)


def _bound(log_ratio: float) -> float | None:
    """Nine digits: more would hang on the order of a machine's sums."""
    return float(f"{math.exp(log_ratio):.9g}") if log_ratio < 700 else None


def verdict(interval: Interval, better: str) -> str:
    """``better``, ``worse`` or (with no good end) ``different``; ``unclear`` where 1 lies inside; ``same``."""
    low = 0.0 if interval.low is None else interval.low
    high = math.inf if interval.high is None else interval.high
    if low == high == 1:
        return "same"
    if low <= 1 <= high:
        return "unclear"
    if not better:
        return "different"
    return "better" if (low > 1) == (better == "higher") else "worse"
