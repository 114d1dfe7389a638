"""Attention of one kind of step: seconds over (row, context), as curves of every row.

Attention is linear in the (query, key) pairs that it attends to, so contexts are interpolated linearly and rows of
prefills by their pairs. It never gets faster for more work, so measurements are made non-decreasing along both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simserve.step_time.operators.far import with_far_end, with_far_tokens
from simserve.step_time.operators.grid import Values, bracket, fill_between, isotonic
from simserve.step_time.operators.packing import LEAST_SHARE, attended_pairs, packed_floor
from simserve.step_time.surface import Curve


class DecodeRows:
    """Rows are numbers of decodes, contexts their mean cached tokens."""

    def __init__(self, rows: Sequence[float], contexts: Sequence[float], measured: Values) -> None:
        self._contexts, self._last_row = list(contexts), rows[-1]
        values, self._inside = _filled(measured, rows, contexts)
        self._knots, columns = with_far_end(contexts, values.T)
        self._rows, values = self._with_far_row(rows, columns.T)
        self._values = isotonic(isotonic(values, 1), 0)
        self._curves: dict[int, Curve] = {}

    def curve(self, row: int) -> Curve:
        """Seconds over context at a row ≥ 1."""
        curve = self._curves.get(row)
        if curve is None:
            curve = self._curves[row] = self._make(row)
        return curve

    def _make(self, row: int) -> Curve:
        i, j, _ = bracket(self._rows, row)
        values = self._values[i] + self._shares(row, i, j) * (self._values[j] - self._values[i])
        knots, values = self._with_head(row, values)
        (low, high), (more_low, more_high) = self._inside[i], self._inside[j]
        begin = knots[0] if low == more_low == self._contexts[0] else max(low, more_low)
        row_inside = self._rows[0] <= row <= self._last_row
        return Curve(knots, values.tolist(), (begin, min(high, more_high)), row_inside)

    def _with_far_row(self, rows: Sequence[float], values: Values) -> tuple[list[float], Values]:
        self._inside.append(self._inside[-1])
        return with_far_end(rows, values)

    def _shares(self, row: int, i: int, j: int) -> Values:
        rows = self._rows
        return np.array([0.0 if i == j else (row - rows[i]) / (rows[j] - rows[i])])

    def _with_head(self, row: int, values: Values) -> tuple[list[float], Values]:
        return self._knots, values


class PrefillRows(DecodeRows):
    """Rows are the new tokens of all prefills of a step together, contexts the cached tokens that one chunk of so many
    tokens would attend as many pairs with: down to −row/2, where each token attends to itself alone."""

    def _with_far_row(self, rows: Sequence[float], values: Values) -> tuple[list[float], Values]:
        self._inside.append(self._inside[-1])
        return with_far_tokens(rows, np.array(self._knots), values)

    def _shares(self, row: int, i: int, j: int) -> Values:
        if i == j:
            return np.zeros(1)
        contexts = np.array(self._knots)
        least, most = attended_pairs(self._rows[i], contexts), attended_pairs(self._rows[j], contexts)
        shares: Values = (attended_pairs(row, contexts) - least) / (most - least)
        return shares

    def _with_head(self, row: int, values: Values) -> tuple[list[float], Values]:
        first, knots = self._values[0], self._knots
        floor = packed_floor(self._rows[0], knots, first, LEAST_SHARE * first[0])
        head = np.minimum(values[0], packed_floor(row, knots, values, floor))
        return [min(-row / 2, knots[0] - 0.5), *knots], np.concatenate([[head], values])


def _filled(
    measured: Values, rows: Sequence[float], contexts: Sequence[float]
) -> tuple[Values, list[tuple[float, float]]]:
    """Holes filled; and from which to which context each row is known."""
    values = fill_between(fill_between(measured, contexts, 1), rows, 0)
    inside = []
    for i, row in enumerate(rows):
        known = np.flatnonzero(np.isfinite(values[i]))
        inside.append((contexts[known[0]], contexts[known[-1]]))
        _extend(values, i, known, row / rows[i - 1] if i else math.nan)
    return values, inside


def _extend(values: Values, i: int, known: npt.NDArray[np.intp], scale: float) -> None:
    """Beyond its known contexts a row rises as the row before it does, times their ratio."""
    first, last = known[0], known[-1]
    values[i, :first] = values[i, first]
    tail = slice(last + 1, None)
    values[i, tail] = values[i, last] + (scale * (values[i - 1, tail] - values[i - 1, last]) if i else 0.0)
