"""Measured seconds over (row, context): rows are new tokens or batch sizes, contexts are cached tokens per sequence.

Linear between rows, piecewise linear in context, the table's points returned exactly. Calibration keeps tables from
falling along context; over rows nothing is smoothed: fp32 decode on a CPU is not even monotonic in batch size.
Outside the grid every step is flagged:

- context beyond the last measured one: the last measured slope, never negative;
- context below the first: held flat, or (``below="linear"``) down the first slope, guarded to stay positive;
- row beyond the last: the last two rows' slope at each context, never decreasing; below the first: the first row.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Literal

from simserve.step_time.profile_schema import Table, TableRow
from simserve.step_time.stretch import UNBOUNDED, Ramp

Below = Literal["flat", "linear"]
_LEAST_SHARE = 0.25  # of the first measured value, left where a prefill would attend to nothing at all


class Curve:
    """One row of a surface: seconds over context as knots and slopes, in plain lists because this is the hot path.

    Segment i runs from knot i to knot i + 1, the last one to infinity; ``flags`` says which are extrapolated.
    """

    __slots__ = ("flags", "head_flag", "head_slope", "knots", "slopes", "values")

    def __init__(self, knots: list[float], values: list[float], inside: tuple[float, float], row_inside: bool) -> None:
        self.knots = knots
        self.values = values
        pairs = zip(pairwise(knots), pairwise(values), strict=True)
        self.slopes = [(v1 - v0) / (k1 - k0) for (k0, k1), (v0, v1) in pairs]
        self.slopes.append(max(0.0, self.slopes[-1]))
        self.flags = [not (row_inside and inside[0] <= k and j <= inside[1]) for k, j in pairwise([*knots, math.inf])]
        self.head_slope = 0.0
        self.head_flag = True

    def at(self, context: float) -> float:
        """Seconds at any context."""
        i = bisect_right(self.knots, context) - 1
        if i < 0:
            return self.values[0] + self.head_slope * (context - self.knots[0])
        return self.values[i] + self.slopes[i] * (context - self.knots[i])

    def ramp(self, context: float, growth: float) -> Ramp:
        """Seconds of steps whose context starts at ``context`` and grows by ``growth`` > 0: up to the next knot."""
        knots = self.knots
        i = bisect_right(knots, context) - 1
        if i < 0:
            gap = context - knots[0]
            num_steps = max(1, math.ceil(-gap / growth))
            return Ramp(self.values[0] + self.head_slope * gap, self.head_slope * growth, num_steps, self.head_flag)
        past = context - knots[i]
        slope, flag = self.slopes[i], self.flags[i]
        first_s = self.values[i] + slope * past
        if flag and past == 0.0 and i > 0 and not self.flags[i - 1]:
            return Ramp(first_s, 0.0, 1)  # the last measured context itself
        if i + 1 == len(knots):
            return Ramp(first_s, slope * growth, UNBOUNDED, flag)
        return Ramp(first_s, slope * growth, int((knots[i + 1] - context) / growth) + 1, flag)


class Surface:
    """Curves of every row value, made on demand and kept."""

    def __init__(self, table: Table, below: Below = "flat") -> None:
        self._below = below
        self._rows = [row.row for row in table.rows]
        self._measured = [_measured(row) for row in table.rows]
        self._curves: dict[int, Curve] = {}
        self._increments: dict[int, Curve] = {}

    @property
    def min_context(self) -> float:
        """The smallest context measured in any row."""
        return min(curve.knots[0] for curve in self._measured)

    def curve(self, row: int) -> Curve:
        """Seconds over context at a row value ≥ 1."""
        curve = self._curves.get(row)
        if curve is None:
            curve = self._curves[row] = self._make(row)
        return curve

    def increment(self, row: int) -> Curve:
        """What a context costs above the smallest one: ``curve(row)`` less its first value, made non-decreasing, so
        that adding it to something never takes time away."""
        curve = self._increments.get(row)
        if curve is None:
            base = self.curve(row)
            values = [value - base.values[0] for value in accumulate(base.values, max)]
            curve = Curve(base.knots, values, (0.0, math.inf), True)
            curve.flags = base.flags
            self._increments[row] = curve
        return curve

    def _make(self, row: int) -> Curve:
        rows, measured = self._rows, self._measured
        blend: Callable[[float, float], float]
        i = bisect_right(rows, row) - 1
        if i < 0:
            lower, upper, blend = measured[0], measured[0], _first
        elif rows[i] == row:
            lower, upper, blend = measured[i], measured[i], _first
        elif i + 1 < len(rows):
            share = (row - rows[i]) / (rows[i + 1] - rows[i])
            lower, upper, blend = measured[i], measured[i + 1], lambda a, b: a + share * (b - a)
        else:
            steps = (row - rows[-1]) / (rows[-1] - rows[-2])
            lower, upper, blend = measured[-2], measured[-1], lambda a, b: b + steps * max(0.0, b - a)
        curve = _combine(lower, upper, blend, rows[0] <= row <= rows[-1])
        if self._below == "linear":
            guard = (1 - _LEAST_SHARE) * curve.values[0] / (row / 2)
            curve.head_slope = min(max(0.0, curve.slopes[0]), guard)
            curve.head_flag = curve.flags[0]
        return curve


def _first(a: float, _b: float) -> float:
    return a


def _measured(row: TableRow) -> Curve:
    knots = [float(context) for context in row.contexts]
    return Curve(knots, list(row.seconds), (knots[0], knots[-1]), True)


def _combine(lower: Curve, upper: Curve, blend: Callable[[float, float], float], row_inside: bool) -> Curve:
    """The curve between (or beyond) two rows, on the knots of both; inside is where both were measured."""
    knots = sorted({*lower.knots, *upper.knots})
    values = [blend(lower.at(knot), upper.at(knot)) for knot in knots]
    inside = max(lower.knots[0], upper.knots[0]), min(lower.knots[-1], upper.knots[-1])
    return Curve(knots, values, inside, row_inside)
