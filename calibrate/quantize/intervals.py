"""Intervals of 95 %: Wilson's for shares, bootstrap over windows of a text for everything else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.step_time.quality_schema import Estimate

Floats = NDArray[np.float64]
Z = 1.959963984540054  # of 95 %
NUM_DRAWS = 4_000


def wilson(num_true: float, num_all: float) -> Estimate:
    """A share and its score interval (Wilson 1927), which is sensible at 0 and 1 too: 15 of 16 is 0.72 to 0.99."""
    share = num_true / num_all
    middle = share + Z * Z / (2 * num_all)
    half = Z * math.sqrt(share * (1 - share) / num_all + Z * Z / (4 * num_all * num_all))
    below, above = ((middle + sign * half) / (1 + Z * Z / num_all) for sign in (-1, 1))
    return Estimate(value=share, low=max(0.0, min(below, share)), high=min(1.0, max(above, share)))


def wilson_of_groups(num_true: Sequence[int], group_size: int) -> Estimate:
    """As ``wilson`` for answers of ``group_size`` tokens, ``num_true`` of which each: tokens of one answer are wrong
    together, so that they count as fewer by the design effect (Kish), the variance between answers over what it would
    be if tokens were independent. It is at least 1, and 1 where no answer differs from another."""
    shares = np.asarray(num_true, dtype=float) / group_size
    share = float(shares.mean())
    effect = 1.0
    if len(shares) > 1 and 0 < share < 1:
        effect = max(1.0, float(shares.var(ddof=1)) * group_size / (share * (1 - share)))
    num_all = len(shares) * group_size / effect
    return wilson(share * num_all, num_all)


def bootstrap(
    columns: Sequence[Sequence[float]], statistic: Callable[..., Floats | float], seed: int = 0, draws: int = NUM_DRAWS
) -> Estimate:
    """``statistic`` of the columns' means, with the interval that holds 95 % of its values when the rows are drawn
    again; rows stay together, so a difference of two columns is paired."""
    table = np.asarray(columns, dtype=float)
    generator = np.random.default_rng(seed)
    value = float(statistic(*table.mean(axis=1)))
    rows = table.shape[1]
    found = np.empty(draws)
    for draw in range(draws):
        found[draw] = float(statistic(*table[:, generator.integers(0, rows, rows)].mean(axis=1)))
    low, high = np.quantile(found, (0.025, 0.975))
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value))
