"""What the page draws of the requests themselves: distributions, and one request in both runs. Bounded in size."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.compare.requests import Requests
from simserve.distributions import FloatColumn
from simserve.report.aggregate import quantile_curve, quantile_levels, rounded

DRAWN = ("ttft_s", "e2e_s")
MAX_POINTS = 1000
NUM_SQUARES = 48  # per axis, log-spaced


def curves(a: Requests, b: Requests, paired: bool) -> dict[str, Any]:
    """For each latency of ``DRAWN``: quantiles of both at common levels, and where both answered the same request its
    points ``[in A, in B, requests]``, in squares of a log-log grid when there are more than ``MAX_POINTS``."""
    levels = quantile_levels()
    entries: dict[str, Any] = {"levels": rounded(levels)}
    for name in DRAWN:
        first, second = a.columns[name], b.columns[name]
        quantiles = {side: rounded(quantile_curve(values, levels)) for side, values in (("a", first), ("b", second))}
        entries[name] = {**quantiles, "points": scatter(first, second) if paired else None}
    return entries


def scatter(a: FloatColumn, b: FloatColumn) -> list[list[float | None]]:
    """Requests that have a positive latency in both runs: a point each, or squares with how many fall in."""
    both = (a > 0) & (b > 0)
    a, b = a[both], b[both]
    if len(a) <= MAX_POINTS:
        return [rounded([x, y, 1]) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    logs = np.log([a, b])
    low, width = logs.min(), np.ptp(logs) * (1 + 1e-9) / NUM_SQUARES or 1.0
    column, row = ((logs - low) // width).astype(np.int64)
    squares, counts = np.unique(column * NUM_SQUARES + row, return_counts=True)
    middles = np.exp(low + width * (np.array(np.divmod(squares, NUM_SQUARES)) + 0.5))
    return [rounded(point) for point in np.column_stack([*middles, counts])]
