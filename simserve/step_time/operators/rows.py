"""Attention of one kind of step: seconds over (row, context), as curves of every row.

Attention is linear in the (query, key) pairs that it attends to, so contexts are interpolated linearly and rows of
prefills by their pairs. It never gets faster for more work, so measurements are made non-decreasing along both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simserve.step_time.operators.grid import Values, bracket, fill_between, half_way, isotonic
from simserve.step_time.surface import Curve

_FAR = 2.0**24  # tokens of context: beyond what any model is asked for


def attended_pairs(num_new_tokens: Values | float, num_context_tokens: Values) -> Values:
    """(query, key) pairs of chunks, up to half a pair per token: q·c + q²/2."""
    pairs: Values = num_new_tokens * (num_context_tokens + num_new_tokens / 2)
    return pairs


class DecodeRows:
    """Rows are numbers of decodes, contexts their mean cached tokens."""

    def __init__(self, rows: Sequence[float], contexts: Sequence[float], measured: Values) -> None:
        self._rows, self._contexts = list(rows), list(contexts)
        self._values, self._inside = _completed(measured, self._rows, self._contexts)
        self._curves: dict[int, Curve] = {}

    def curve(self, row: int) -> Curve:
        """Seconds over context at a row ≥ 1."""
        curve = self._curves.get(row)
        if curve is None:
            curve = self._curves[row] = self._make(row)
        return curve

    def _make(self, row: int) -> Curve:
        i, j, row_inside = bracket(self._rows, row)
        values = blend(self._values[i], self._values[j], self._shares(row, i, j))
        (low, high), (more_low, more_high) = self._inside[i], self._inside[j]
        knots, values = self._knots(row, values)
        first = knots[0] if low == more_low == self._contexts[0] else max(low, more_low)
        return Curve(knots, values.tolist(), (first, min(high, more_high)), row_inside)

    def _shares(self, row: int, i: int, j: int) -> Values:
        rows = self._rows
        return np.array([0.0 if i == j else (row - rows[i]) / (rows[j] - rows[i])])

    def _knots(self, row: int, values: Values) -> tuple[list[float], Values]:
        return with_far_end(self._contexts, values)


class PrefillRows(DecodeRows):
    """Rows are the new tokens of all prefills of a step together, contexts the cached tokens that one chunk of so many
    tokens would attend as many pairs with: down to −row/2, where each token attends to itself alone."""

    def _shares(self, row: int, i: int, j: int) -> Values:
        return pair_shares(row, self._rows[i], self._rows[j], np.array(self._contexts))

    def _knots(self, row: int, values: Values) -> tuple[list[float], Values]:
        floor = float(self._values[0, 0])
        knots, values = with_far_end(self._contexts, values)
        packed = np.minimum(values[0], packed_floor(row, knots, values, floor))
        return [min(-row / 2, knots[0] - 0.5), *knots], np.concatenate([[packed], values])


def pair_shares(row: float, low: float, high: float, contexts: Values) -> Values:
    """How far a row is from one to another, by attended pairs at each context."""
    if low == high:
        return np.zeros(len(contexts))
    least, most = attended_pairs(low, contexts), attended_pairs(high, contexts)
    shares: Values = (attended_pairs(row, contexts) - least) / (most - least)
    return shares


def blend(low: Values, high: Values, share: Values) -> Values:
    """From ``low`` at share 0 to ``high`` at 1 and on beyond it, where it never falls."""
    mixed: Values = np.where(share <= 1, low + share * (high - low), high + (share - 1) * np.maximum(0, high - low))
    return mixed


def with_far_end(contexts: Sequence[float], values: Values) -> tuple[list[float], Values]:
    """A knot far beyond the last context, on the slope of the upper half: two last contexts may be close, and noisy."""
    i, last = half_way(contexts), contexts[-1]
    slope = np.zeros_like(values[-1]) if len(contexts) == 1 else (values[-1] - values[i]) / (last - contexts[i])
    far = (values[-1] + np.maximum(0.0, slope) * _FAR)[None]
    return [*contexts, last + _FAR], np.concatenate([values, far])


def packed_floor(row: float, knots: Sequence[float], values: Values, floor: Values | float) -> Values:
    """Seconds of ``row`` tokens that attend to themselves alone: what contexts up to ``row`` add, taken away for half
    as many (the secant is twice as long as what it extrapolates), and not below ``floor``, a smallest prefill."""
    i = max(1, min(bracket(knots, max(row, knots[0]))[0], len(knots) - 1))
    slope = np.maximum(0.0, (values[i] - values[0]) / (knots[i] - knots[0]))
    packed: Values = np.maximum(floor, values[0] - slope * (knots[0] + row / 2))
    return packed


def _completed(
    measured: Values, rows: Sequence[float], contexts: Sequence[float]
) -> tuple[Values, list[tuple[float, float]]]:
    """Holes filled, monotone along both axes; and from which to which context each row is known."""
    values = fill_between(fill_between(measured, contexts, 1), rows, 0)
    inside = []
    for i, row in enumerate(rows):
        known = np.flatnonzero(np.isfinite(values[i]))
        inside.append((contexts[known[0]], contexts[known[-1]]))
        _extend(values, i, known, row / rows[i - 1] if i else math.nan)
    return isotonic(isotonic(values, 1), 0), inside


def _extend(values: Values, i: int, known: npt.NDArray[np.intp], scale: float) -> None:
    """Beyond its known contexts a row rises as the row before it does, times their ratio."""
    first, last = known[0], known[-1]
    values[i, :first] = values[i, first]
    tail = slice(last + 1, None)
    values[i, tail] = values[i, last] + (scale * (values[i - 1, tail] - values[i - 1, last]) if i else 0.0)
