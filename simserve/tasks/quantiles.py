"""Percentiles that do not flatter: a request that was never answered waited for ever."""

from __future__ import annotations

import math

import numpy as np

from simserve.distributions import PERCENTILES, FloatColumn


def quantiles_with_unanswered(answered: FloatColumn, num_unanswered: int) -> dict[str, float | None]:
    """Mean and percentiles of ``answered`` (NaN is left out) and of ``num_unanswered`` infinite values; null where
    infinite, or where there is no value at all.

    Ranks are those of ``distributions``: q·(n − 1), interpolated; a rank that leans on an infinite value is infinite.
    """
    known = np.sort(answered[~np.isnan(answered)])
    n = len(known) + num_unanswered
    mean = float(known.mean()) if len(known) and not num_unanswered else None
    return {"mean": mean, **{f"p{q}": _at(known, q / 100 * (n - 1)) for q in PERCENTILES}}


def _at(known: FloatColumn, rank: float) -> float | None:
    """The value of a rank, counted from 0; beyond the known ones it is infinite."""
    below = math.floor(rank + 1e-9)
    share = max(0.0, rank - below)
    if rank < 0 or below >= len(known):
        return None
    if share < 1e-9:
        return float(known[below])
    if below + 1 >= len(known):
        return None
    return float(known[below] + (known[below + 1] - known[below]) * share)
