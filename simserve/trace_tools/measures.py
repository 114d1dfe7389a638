"""What two traces are compared by: distribution functions, ranks, counts in windows of many sizes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn
from simserve.workload.timestamps import NS_PER_S

FloatColumn = npt.NDArray[np.float64]
WINDOWS_S = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0)
MIN_WINDOWS = 10  # fewer say nothing about their variance


def ks_distance(a: FloatColumn, b: FloatColumn) -> float:
    """The largest difference between two samples' distribution functions (Kolmogorov–Smirnov)."""
    a, b = np.sort(a), np.sort(b)
    places = np.concatenate([a, b])
    below = [np.searchsorted(each, places, side="right") / len(each) for each in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def rank_correlation(a: IntColumn, b: IntColumn) -> float | None:
    """Spearman's; None where one of the two is all alike."""
    ranks = [_ranks(column) for column in (a, b)]
    if any(each.std() == 0 for each in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: IntColumn) -> FloatColumn:
    """Places in order, the mean of them where values are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]


def window_sizes_s(arrival_ns: IntColumn, tick_ns: int = 1) -> list[float]:
    """The sizes of windows in which counts say something: one request or more in them on average, no less than a step
    of the clock, ten or more in the span."""
    span_ns = int(arrival_ns[-1])
    return [
        size_s
        for size_s in WINDOWS_S
        if size_s * NS_PER_S >= max(tick_ns, span_ns / max(1, len(arrival_ns) - 1))
        and span_ns >= MIN_WINDOWS * size_s * NS_PER_S
    ]


def dispersion(arrival_ns: IntColumn, window_s: float, span_ns: int) -> float | None:
    """The index of dispersion of counts: variance over mean of the arrivals in the whole windows of a span. 1 for a
    Poisson process at any size; cv² for long windows of a renewal process; growing with the size where rates change.
    None where nobody comes."""
    num_windows = span_ns // round(window_s * NS_PER_S)
    edges = np.arange(num_windows + 1) * round(window_s * NS_PER_S)
    counts = np.diff(np.searchsorted(arrival_ns, edges))
    return float(counts.var() / counts.mean()) if counts.any() else None


def misplaced(a: IntColumn, b: IntColumn) -> float:
    """The share of the first curve's requests that find no place in the second."""
    return float((a - b).clip(0).sum() / max(1, a.sum()))
