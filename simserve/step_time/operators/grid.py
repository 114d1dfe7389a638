"""Measurements on a grid with holes: filling, making monotone, and how wrong the neighbours would have been.

A hole is NaN. Grids have holes where a profiler merged several sweeps, or stopped where the cache was full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from simserve.step_time.monotone import non_decreasing

Values = npt.NDArray[np.float64]


def fill_between(values: Values, positions: Sequence[float], axis: int) -> Values:
    """Holes between two known values along ``axis`` filled on the straight line between them; others stay."""
    at = np.asarray(positions, float)

    def fill(line: Values) -> Values:
        known = np.isfinite(line)
        if known.all() or known.sum() < 2:
            return line
        return np.asarray(np.interp(at, at[known], line[known], left=np.nan, right=np.nan))

    return _along(fill, values, axis)


def fill_flat(values: Values, axis: int) -> Values:
    """Holes before the first and after the last known value along ``axis`` filled with that value."""

    def fill(line: Values) -> Values:
        known = np.flatnonzero(np.isfinite(line))
        if not len(known) or len(known) == len(line):
            return line
        inner = line.copy()
        inner[: known[0]], inner[known[-1] + 1 :] = line[known[0]], line[known[-1]]
        return inner

    return _along(fill, values, axis)


def isotonic(values: Values, axis: int) -> Values:
    """The nearest values that never fall along ``axis``. Applied to one axis after another it keeps what it reached
    along the earlier ones, because isotonic regression preserves order."""
    falls = (np.diff(values, axis=axis) < 0).any()
    return _along(lambda line: np.asarray(non_decreasing(line.tolist())), values, axis) if falls else values


def leave_one_out(values: Values, positions: Values, axis: int) -> Values:
    """What the nearest known neighbours on both sides along ``axis`` say about each known value; NaN where one lacks.

    ``positions`` has the shape of ``values``: the scale on which the values are taken to be linear.
    """
    found = np.full(values.shape, np.nan)
    moved, at, out = (np.moveaxis(array, axis, -1) for array in (values, positions, found))
    for place in np.ndindex(*moved.shape[:-1]):
        known = np.flatnonzero(np.isfinite(moved[place]))
        if len(known) < 3:
            continue
        x, y = at[place][known], moved[place][known]
        share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
        out[place][known[1:-1]] = y[:-2] + share * (y[2:] - y[:-2])
    return found


def bracket(axis: Sequence[float], value: float) -> tuple[int, int, bool]:
    """The places on ``axis`` around ``value``, and whether it lies between its ends.

    Before the first place both are the first. After the last they are the one nearest to half of it and the last: far
    enough apart that a slope through them is not noise.
    """
    i = bisect_right(axis, value) - 1
    if i < 0:
        return 0, 0, False
    if axis[i] == value:
        return i, i, True
    if i + 1 < len(axis):
        return i, i + 1, True
    return half_way(axis), i, False


def half_way(axis: Sequence[float]) -> int:
    """The place nearest to half of the last one, never the last itself unless it is alone."""
    return max(0, min(bisect_right(axis, axis[-1] / 2) - 1, len(axis) - 2))


def _along(change: Callable[[Values], Values], values: Values, axis: int) -> Values:
    return np.apply_along_axis(change, axis, values) if values.size else values
