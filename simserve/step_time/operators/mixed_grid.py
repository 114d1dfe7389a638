"""Attention of prefills and decodes in one kernel, over new tokens, their context, decodes and theirs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simserve.step_time.operators.far import with_far_end, with_far_tokens
from simserve.step_time.operators.grid import Values, fill_between, fill_flat, isotonic
from simserve.step_time.operators.packing import LEAST_SHARE, packed_floor

Axes = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]


class _Place(NamedTuple):
    """The places around a value on an axis, how far it is from the lower to the upper, and whether it was inside."""

    low: int
    high: int
    share: float
    inside: bool


class MixedGrid:
    """Between measured points: linear in both contexts and in decodes, in new tokens by attended pairs. Outside:
    along the slope of the upper half, or flat below the first, and flagged. Never decreasing along any axis.

    The contexts of prefills begin at −tokens/2 (see ``packing``): plane 0 is that end.
    """

    def __init__(self, axes: Axes, measured: Values) -> None:
        """``measured`` over (tokens, contexts, decodes, decode contexts), NaN where nothing was."""
        self._last = [axis[-1] for axis in axes]
        values = measured
        for axis in (3, 1, 2, 0):
            values = fill_between(values, axes[axis], axis)
        self._known = np.isfinite(values).tolist()
        for axis in (3, 1, 2, 0):
            values = fill_flat(values, axis)
        values = self._with_ends(axes, values)
        for axis in (3, 1, 2, 0):
            values = isotonic(values, axis)
        self._values: list[list[list[list[float]]]] = values.tolist()  # plain lists: this is the hot path

    def at(self, num_new_tokens: int, context: float, num_decodes: int, decode_context: float) -> tuple[float, bool]:
        """Seconds, and whether any of it lies outside what was measured."""
        tokens = _between(self._tokens, num_new_tokens, self._last[0])
        plane = self._plane(num_new_tokens, context)
        decodes = _between(self._decodes, num_decodes, self._last[2])
        column = _between(self._decode_contexts, decode_context, self._last[3])
        near = self._on_plane(plane.low, num_new_tokens, tokens, decodes, column)
        far = self._on_plane(plane.high, num_new_tokens, tokens, decodes, column)
        known = tokens.inside and decodes.inside and column.inside and plane.inside
        known = known and self._all_known(tokens, plane, decodes, column)
        return near + plane.share * (far - near), not known

    def _on_plane(self, plane: int, num_new_tokens: int, tokens: _Place, decodes: _Place, column: _Place) -> float:
        """Seconds at one context of prefills."""
        low = _of_row(self._values[tokens.low][plane], decodes, column)
        if tokens.low == tokens.high:
            return low
        high = _of_row(self._values[tokens.high][plane], decodes, column)
        context = self._contexts[max(0, plane - 1)]
        first, last = self._tokens[tokens.low], self._tokens[tokens.high]
        least = first * (context + first / 2)
        pairs, most = num_new_tokens * (context + num_new_tokens / 2), last * (context + last / 2)
        return low + (pairs - least) / (most - least) * (high - low)

    def _plane(self, num_new_tokens: int, context: float) -> _Place:
        """The planes around a context of prefills."""
        first = self._contexts[0]
        if context < first:
            end = min(-num_new_tokens / 2, first - 0.5)
            return _Place(0, 1, max(0.0, (context - end) / (first - end)), True)
        low, high, share, inside = _between(self._contexts, context, self._last[1])
        return _Place(low + 1, high + 1, share, inside)

    def _all_known(self, tokens: _Place, plane: _Place, decodes: _Place, column: _Place) -> bool:
        """Whether every corner that counts was measured, or lies between measured ones."""
        planes = {max(0, plane.low - 1), max(0, plane.high - 1) if plane.share else max(0, plane.low - 1)}
        columns = {column.low, column.high if column.share else column.low}
        return all(
            self._known[i][c][k][d]
            for i in {tokens.low, tokens.high}
            for c in planes
            for k in {decodes.low, decodes.high}
            for d in columns
        )

    def _with_ends(self, axes: Axes, values: Values) -> Values:
        """A far place on every axis, and before the first context a plane of tokens that attend to themselves alone."""
        self._decode_contexts, values = _on(3, values, axes[3])
        self._decodes, values = _on(2, values, axes[2])
        self._contexts, values = _on(1, values, axes[1])
        floors: list[Values] = []
        for tokens, row in zip(axes[0], values, strict=True):
            floor = floors[0] if floors else LEAST_SHARE * row[0]
            floors.append(np.minimum(row[0], packed_floor(tokens, self._contexts, row, floor)))
        values = np.concatenate([np.array(floors)[:, None], values], axis=1)
        self._tokens, values = with_far_tokens(axes[0], np.array([self._contexts[0], *self._contexts]), values)
        return values


def _of_row(row: list[list[float]], decodes: _Place, column: _Place) -> float:
    """Seconds over decodes and their context, bilinear."""
    a, b, down = column.low, column.high, column.share
    first = row[decodes.low]
    low = first[a] + down * (first[b] - first[a])
    if decodes.low == decodes.high:
        return low
    last = row[decodes.high]
    return low + decodes.share * (last[a] + down * (last[b] - last[a]) - low)


def _on(axis: int, values: Values, places: Sequence[float]) -> tuple[list[float], Values]:
    extended, moved = with_far_end(places, np.moveaxis(values, axis, 0))
    return extended, np.moveaxis(moved, 0, axis)


def _between(knots: Sequence[float], value: float, last: float) -> _Place:
    """Where a value is, inside if between the first knot and ``last``; held at the first and at the far end."""
    i = bisect_right(knots, value) - 1
    if i < 0 or knots[i] == value:
        return _Place(max(0, i), max(0, i), 0.0, i >= 0 and value <= last)
    if i + 1 == len(knots):
        return _Place(i, i, 0.0, False)
    return _Place(i, i + 1, (value - knots[i]) / (knots[i + 1] - knots[i]), value <= last)
