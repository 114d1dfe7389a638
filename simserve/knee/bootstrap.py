"""Intervals for what is computed from a mean curve, not from each replication by itself.

A knee or a root of each replication's own curve, averaged, is not the knee or root of the mean curve: where a curve
bends, noise moves its root to one side on average (Jensen), and a t-interval of such roots settles, ever narrower, on
the wrong figure. So the curve is averaged first, and replications are resampled to see how its root moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from simserve.tasks.intervals import Interval, t_quantile

FloatArray = npt.NDArray[np.float64]


def bootstrap_interval(
    rows: FloatArray,
    statistic: Callable[[FloatArray], float | None],
    seed: int,
    num_draws: int,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """``statistic`` of the mean row, ± t times its bootstrap standard error over rows (one row per replication).

    The standard error is that of resampled means, times sqrt(n / (n − 1)), for resampling underestimates a variance by
    that share; Student's t with n − 1 degrees stands for the few replications it comes from (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapters 6 and 12). One row has no interval. Draws without a statistic are left
    out; the interval is cut to ``bounds``.
    """
    n = len(rows)
    value = statistic(rows.mean(axis=0))
    if value is None or n < 2:
        return without_interval(value, n)
    rng = np.random.default_rng(seed)
    means = (rows[picks].mean(axis=0) for picks in rng.integers(0, n, (num_draws, n)))
    draws = [found for mean in means if (found := statistic(mean)) is not None]
    if len(draws) < 2:
        return without_interval(value, n)
    half_width = t_quantile(n - 1) * float(np.std(draws, ddof=1)) * math.sqrt(n / (n - 1))
    low, high = max(bounds[0], value - half_width), min(bounds[1], value + half_width)
    return {"value": value, "low": low, "high": high, "n": n, "calibration": 0.0}


def without_interval(value: float | None, n: int) -> Interval:
    """A figure whose chance is unknown: of one replication, or null."""
    return {"value": value, "low": None, "high": None, "n": n, "calibration": 0.0}
