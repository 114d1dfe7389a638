"""Six numbers that describe a distribution: mean, p50, p90, p95, p99 and max.

Percentiles of samples are numpy's ``linear``: rank q·(n − 1) among the sorted values, interpolated between neighbours.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn

FloatColumn = npt.NDArray[np.float64]
PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", *(f"p{q}" for q in PERCENTILES), "max")
Description = dict[str, float | None]


def describe(values: FloatColumn) -> Description:
    """Mean, percentiles and maximum of the values that are not NaN; all null when there is none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return dict.fromkeys(STATISTICS, None)
    quantiles = np.percentile(known, PERCENTILES, overwrite_input=True)  # `known` is a copy
    return _named(float(known.mean()), quantiles, float(known.max()))


def describe_bins(counts: IntColumn, edges: FloatColumn, mean: float, maximum: float) -> Description:
    """As ``describe``, for values counted in log-spaced bins, whose exact mean and maximum are known apart.

    ``edges`` has one element more than ``counts``. The value of rank r stands r + ½ counts up the cumulative histogram
    and is placed geometrically inside its bin, so a percentile is off by at most the width of one bin.
    """
    total = int(counts.sum())
    if not total:
        return dict.fromkeys(STATISTICS, None)
    cumulative = np.cumsum(counts)
    position = np.array(PERCENTILES) / 100 * (total - 1) + 0.5
    i = np.searchsorted(cumulative, position, side="right")
    inside = 1 - (cumulative[i] - position) / counts[i]
    quantiles = edges[i] * (edges[i + 1] / edges[i]) ** inside
    return _named(mean, np.minimum(quantiles, maximum), maximum)


def finite_or_none(value: float) -> float | None:
    """A float that JSON can hold: NaN and infinities become null."""
    return float(value) if math.isfinite(value) else None


def _named(mean: float, quantiles: FloatColumn, maximum: float) -> Description:
    numbers = (mean, *(float(value) for value in quantiles), maximum)
    return dict(zip(STATISTICS, map(finite_or_none, numbers), strict=True))
