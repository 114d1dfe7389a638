"""Where a curve that was simulated at a few loads crosses its limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simserve.knee.bootstrap import bootstrap_interval
from simserve.tasks.intervals import Interval

FloatArray = npt.NDArray[np.float64]
NUM_DRAWS = 200
NUM_GRID_POINTS = 65  # between two loads


def pooled(used: FloatArray) -> FloatArray:
    """By load the largest over SLOs of the mean over replications; ``used`` is by replication, load and SLO."""
    return np.asarray(used.mean(axis=0).max(axis=-1), np.float64)


def pooled_root(loads: FloatArray, used: FloatArray, top: float, seed: int) -> Interval:
    """The load at which the pooled share of the limit is 1, with a 95 % interval over replications.

    The root is that of the mean curve, and replications are resampled to see how it moves: the mean of each
    replication's own root would be too low or too high, for the curve bends (see ``simserve.knee.bootstrap``). The
    interval ends at ``top`` at the latest.
    """

    def root(mean: FloatArray) -> float:
        return min(top, crossing(loads, mean.reshape(used.shape[1:]).max(axis=-1)))

    return bootstrap_interval(used.reshape(len(used), -1), root, seed, NUM_DRAWS, (0.0, top))


def crossing(loads: FloatArray, used: FloatArray) -> float:
    """The load where ``used`` crosses 1: a monotone cubic (PCHIP) of log used over log load, after noise that falls is
    evened out; outside the loads it goes on straight, by the mean slope of the whole."""
    from scipy.interpolate import PchipInterpolator

    x, y = np.log(loads), _ascending(np.log(used))
    slope = max((y[-1] - y[0]) / (x[-1] - x[0]), 1e-3)
    for edge in (0, -1):
        if (y[edge] > 0) == (edge == 0):
            beyond = x[edge] - y[edge] / slope
            return float(np.exp(np.clip(beyond, x[0] - (x[-1] - x[0]), x[-1] + (x[-1] - x[0]))))
    after = int(np.searchsorted(y, 0.0, side="right"))  # 0 < after < len(y), for neither edge is on the wrong side
    fine = np.linspace(x[after - 1], x[after], NUM_GRID_POINTS)
    values = PchipInterpolator(x, y)(fine)
    return float(np.exp(np.interp(0.0, values, fine)))


def _ascending(values: FloatArray) -> FloatArray:
    """The mean of the smallest curve above and the largest below that never fall; a rising curve is left as it is."""
    above = np.maximum.accumulate(values)
    below = np.minimum.accumulate(values[::-1])[::-1]
    return np.asarray((above + below) / 2, np.float64)
