"""Where a latency curve turns up: Kneedle on the mean curve, and how sure the replications are of it.

Kneedle (Satopää, Albrecht, Irwin and Raghavan, "Finding a 'Kneedle' in a Haystack", ICDCSW 2011) takes the point that
lies farthest below the chord of the normalised curve. That point moves with the range that is looked at, so the range
is part of the definition: here 5 % to 95 % of the saturation rate. For M/M/1 the sojourn time is proportional to
1 / (1 − ρ); its tangent is parallel to the chord over [a, b] where 1 / (1 − ρ)² = 1 / ((1 − a)(1 − b)), so the knee is
at 1 − ρ = sqrt((1 − a)(1 − b)), which for the range above is ρ = 0.782, whatever the service time.

More loads make the knee better, not noisier, for the curve is smoothed first (``simserve.knee.smoothing``).

A curve that falls first (static groups fill faster under more load) is looked at from its lowest point on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simserve.knee.bootstrap import bootstrap_interval, without_interval
from simserve.knee.smoothing import smoothing_matrix
from simserve.tasks.intervals import Interval

FloatArray = npt.NDArray[np.float64]
RANGE = (0.05, 0.95)  # of the saturation rate
NUM_GRID_POINTS = 301
NUM_DRAWS = 200
FALLS_FIRST = 1.2  # times its least, at the low end: more than noise
MIN_DEPTH = 0.01  # of the rise: a curve that leaves its chord by less is straight


def curve_knee(
    loads: Sequence[float],
    latencies_by_replication: Sequence[Sequence[float | None]],
    low: float | None = None,
    high: float | None = None,
    seed: int = 0,
    has_corner: bool = False,
) -> Interval:
    """The knee of latency over load, in units of load, with a 95 % interval by bootstrap over replications.

    ``latencies_by_replication`` has a row per replication and a latency (seconds, or null) per load; a load where some
    replication has none is left out. ``low`` and ``high`` bound the range (by default that of the loads). The value is
    null where there is no knee: fewer than four loads in range, or a curve that never bends upwards. ``has_corner``
    leaves the curve as it is, for a closed loop turns within a client and has little noise.
    """
    x, rows = _complete(loads, latencies_by_replication)
    begin, end = (x[0] if low is None else low, x[-1] if high is None else high) if len(x) else (0.0, 0.0)
    if len(x) < 4 or not begin < end:
        return without_interval(None, len(rows))
    smoothing = np.eye(len(x)) if has_corner else smoothing_matrix(x, 1 / _positive(rows.mean(axis=0)))
    return bootstrap_interval(
        rows, lambda mean: _knee(x, _smoothed(mean, smoothing), begin, end), seed, NUM_DRAWS, (begin, end)
    )


def smooth(loads: FloatArray, values: FloatArray, at: FloatArray) -> FloatArray:
    """``values`` > 0 at other loads: a monotone cubic (PCHIP) of their reciprocals, which are nearly straight for a
    queue, so that a few loads tell a curve that grows a hundredfold; held constant outside."""
    from scipy.interpolate import PchipInterpolator

    inside = np.clip(at, loads[0], loads[-1])
    return np.asarray(1 / PchipInterpolator(loads, 1 / _positive(values))(inside), np.float64)


def _smoothed(latencies: FloatArray, smoothing: FloatArray) -> FloatArray:
    """Without the noise, as far as the smoothing goes; no latency is moved more than fivefold."""
    reciprocals = 1 / _positive(latencies)
    return np.asarray(1 / np.clip(smoothing @ reciprocals, reciprocals / 5, reciprocals * 5), np.float64)


def _positive(values: FloatArray) -> FloatArray:
    return np.maximum(values, 1e-12)


def _knee(loads: FloatArray, latencies: FloatArray, begin: float, end: float) -> float | None:
    """The deepest of Kneedle's knees. (Its own choice is the first, which on a noisy curve is a ripple.)"""
    from kneed import KneeLocator

    x = np.linspace(begin, end, NUM_GRID_POINTS)
    y = smooth(loads, latencies, x)
    if y[0] > FALLS_FIRST * y.min():
        x, y = x[y.argmin() :], y[y.argmin() :]
    if len(x) < 3 or not y[-1] > y[0] * (1 + 1e-9):
        return None
    found = KneeLocator(x, y, S=1.0, curve="convex", direction="increasing")
    if not found.all_knees:
        return None
    below_chord = y[0] + (y[-1] - y[0]) * (x - x[0]) / (x[-1] - x[0]) - y
    at = np.searchsorted(x, [float(knee) for knee in found.all_knees])
    deepest = int(at[below_chord[at].argmax()])
    is_bend = below_chord[deepest] > MIN_DEPTH * (y[-1] - y[0])
    return _vertex(x, below_chord, deepest) if is_bend else None


def _vertex(x: FloatArray, y: FloatArray, i: int) -> float:
    """Where the parabola through a highest point of an even grid and its neighbours has its vertex: the grid does not
    show in the knee."""
    if not 0 < i < len(x) - 1:
        return float(x[i])
    bend = y[i - 1] - 2 * y[i] + y[i + 1]
    shift = (y[i - 1] - y[i + 1]) / (2 * bend) if bend < 0 else 0.0
    return float(x[i] + np.clip(shift, -1, 1) * (x[1] - x[0]))


def _complete(loads: Sequence[float], latencies: Sequence[Sequence[float | None]]) -> tuple[FloatArray, FloatArray]:
    """Loads in ascending order at which every replication has a latency, and those latencies."""
    rows = np.array([[np.nan if v is None else v for v in row] for row in latencies], np.float64)
    rows = rows.reshape(len(latencies), len(loads))
    x, first = np.unique(np.asarray(loads, np.float64), return_index=True)
    rows = rows[:, first]
    there = np.isfinite(rows).all(axis=0)
    return x[there], rows[:, there]
