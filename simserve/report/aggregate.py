"""Turn columns of any length into the few hundred numbers that a chart needs. Pure functions of arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_QUANTILES = 200
MAX_TIME_BINS = 400
_TAIL = (0.9, 0.95, 0.99, 0.995, 0.999)


def quantile_levels(max_points: int = MAX_QUANTILES) -> Floats:
    """At most ``max_points`` probabilities from 0 to 1: evenly spaced, with the tail that people ask about added."""
    return np.unique(np.concatenate([np.linspace(0.0, 1.0, max_points - len(_TAIL)), _TAIL]))


def quantile_curve(values: npt.ArrayLike, levels: Floats) -> Floats:
    """The quantile of ``values`` at each level; NaNs are left out, and all is NaN where nothing remains."""
    data = np.asarray(values, np.float64)
    data = data[np.isfinite(data)]
    return np.quantile(data, levels) if len(data) else np.full(len(levels), np.nan)


def weighted_quantile_curve(edges: Floats, counts: npt.ArrayLike, levels: Floats) -> Floats:
    """Quantiles of a histogram (``counts[i]`` values in ``edges[i] .. edges[i + 1]``), each within its bin."""
    weights = np.asarray(counts, np.float64)
    filled = np.flatnonzero(weights)
    if not len(filled):
        return np.full(len(levels), np.nan)
    total = np.cumsum(weights[filled])
    index = np.searchsorted(total, levels * total[-1], side="left")
    bins = filled[np.minimum(index, len(filled) - 1)]
    return np.asarray(np.sqrt(edges[bins] * edges[bins + 1]), np.float64)


def resample_means(bounds: Floats, values: npt.ArrayLike, edges: Floats) -> Floats:
    """Time-weighted means of a step function in new bins; NaN where the function is not defined.

    ``values[i]`` holds from ``bounds[i]`` to ``bounds[i + 1]``. The integral is conserved: Σ mean × covered width over
    bins that span the function equals Σ value × width.
    """
    widths = np.diff(bounds)
    area = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64) * widths)])
    covered = np.diff(np.clip(edges, bounds[0], bounds[-1]))
    gained = np.diff(np.interp(edges, bounds, area))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(covered > 0, gained / covered, np.nan)


def count_in_bins(values: npt.ArrayLike, num_bins: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Edges of at most ``num_bins`` equal bins from 0 to the largest value, and how many values fall in each."""
    data = np.asarray(values, np.float64)
    top = float(data.max(initial=0.0)) or 1.0
    counts, edges = np.histogram(data, bins=num_bins, range=(0.0, top))
    return edges, counts.astype(np.int64)


def is_skewed(values: Iterable[float]) -> bool:
    """Whether positive values span so much that only a logarithmic axis shows both ends."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return bool(positive) and max(positive) > 30 * min(positive)


def linear_ticks(high: float, max_ticks: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from 0 to ``high``, at most ``max_ticks`` steps of them."""
    rough = high / max_ticks
    if rough <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [round(i * step, 12) for i in range(math.floor(high / step * (1 + 1e-9)) + 1)]


def log_ticks(low: float, high: float, max_ticks: int = 9) -> list[float]:
    """1-2-5 ticks from ``low`` to ``high``, thinned to powers of ten (then of 100, …) where they would crowd."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps, stride in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3), ((1,), 4)):
        decades = range(first, last + 1, stride)
        ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= max_ticks:
            return inside
    return inside


def rounded(values: npt.ArrayLike, digits: int = 5) -> list[float | None]:
    """Plain numbers with so many significant digits, None for NaN: what a chart's JSON needs and no more."""
    data = np.asarray(values, np.float64)
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in data.tolist()]


def group_reasons(reasons: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """Requests by reason, reasons that differ only in their numbers together (the first one's words stand for all)."""
    groups: dict[str, tuple[str, list[int]]] = {}
    for request_id, reason in sorted(reasons.items()):
        groups.setdefault(re.sub(r"\d[\d,._]*", "#", reason), (reason, []))[1].append(request_id)
    return sorted(groups.values(), key=lambda group: -len(group[1]))
