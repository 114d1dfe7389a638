"""Attention of prefills and decodes in one kernel, over new tokens, their context, decodes and theirs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simserve.step_time.operators.grid import Values, bracket, fill_between, fill_flat, isotonic
from simserve.step_time.operators.rows import packed_floor, with_far_end

Axes = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]


class _Place(NamedTuple):
    """Two places on an axis, how far a value is from the one to the other, and whether it was inside."""

    low: int
    high: int
    share: float
    inside: bool


class MixedGrid:
    """Between measured points: linear in both contexts and in decodes, in new tokens by attended pairs. Outside:
    along the slope of the upper half, or flat below the first, and flagged. Never decreasing along any axis.

    The contexts of prefills begin at −tokens/2 (see ``PrefillRows``): plane 0 is that end.
    """

    def __init__(self, axes: Axes, measured: Values) -> None:
        """``measured`` over (tokens, contexts, decodes, decode contexts), NaN where nothing was."""
        self._tokens, self._contexts, self._decodes, self._decode_contexts = map(list, axes)
        values = measured
        for axis in (3, 1, 2, 0):
            values = fill_between(values, axes[axis], axis)
        self._known = np.isfinite(values).tolist()
        for axis in (3, 1, 2, 0):
            values = fill_flat(values, axis)
        values = self._with_ends(values)
        for axis in (3, 1, 2, 0):
            values = isotonic(values, axis)
        self._values: list[list[list[list[float]]]] = values.tolist()  # plain lists: this is the hot path

    def at(self, num_new_tokens: int, context: float, num_decodes: int, decode_context: float) -> tuple[float, bool]:
        """Seconds, and whether any of it lies outside what was measured."""
        tokens = _place(self._tokens, num_new_tokens)
        decodes = _place(self._decodes, num_decodes)
        column = _between(self._far_decode_contexts, decode_context, self._decode_contexts[-1])
        plane = self._plane(num_new_tokens, context)
        near = self._on_plane(plane.low, num_new_tokens, tokens, decodes, column)
        far = self._on_plane(plane.high, num_new_tokens, tokens, decodes, column)
        known = tokens.inside and decodes.inside and column.inside and plane.inside
        known = known and self._all_known(tokens, plane, decodes, column)
        return near + plane.share * (far - near), not known

    def _on_plane(self, plane: int, num_new_tokens: int, tokens: _Place, decodes: _Place, column: _Place) -> float:
        """Seconds at one context of prefills."""
        low = self._of_row(self._values[tokens.low][plane], decodes, column)
        if tokens.low == tokens.high:
            return low
        high = self._of_row(self._values[tokens.high][plane], decodes, column)
        context = self._contexts[0] if plane == 0 else self._far_contexts[plane - 1]
        first, last = self._tokens[tokens.low], self._tokens[tokens.high]
        least = first * (context + first / 2)
        share = (num_new_tokens * (context + num_new_tokens / 2) - least) / (last * (context + last / 2) - least)
        return _blend(low, high, share)

    def _of_row(self, row: list[list[float]], decodes: _Place, column: _Place) -> float:
        """Seconds over decodes and their context, bilinear."""
        a, b, down = column.low, column.high, column.share
        first = row[decodes.low]
        low = first[a] + down * (first[b] - first[a])
        if decodes.low == decodes.high:
            return low
        last = row[decodes.high]
        return _blend(low, last[a] + down * (last[b] - last[a]), decodes.share)

    def _plane(self, num_new_tokens: int, context: float) -> _Place:
        """The planes around a context of prefills."""
        first = self._contexts[0]
        if context < first:
            end = min(-num_new_tokens / 2, first - 0.5)
            return _Place(0, 1, max(0.0, (context - end) / (first - end)), True)
        low, high, share, inside = _between(self._far_contexts, context, self._contexts[-1])
        return _Place(low + 1, high + 1, share, inside)

    def _all_known(self, tokens: _Place, plane: _Place, decodes: _Place, column: _Place) -> bool:
        """Whether every corner that counts was measured, or lies between measured ones."""
        planes = {max(0, plane.low - 1), plane.high - 1 if plane.share else max(0, plane.low - 1)}
        columns = {column.low, column.high if column.share else column.low}
        return all(
            self._known[i][c][k][d]
            for i in {tokens.low, tokens.high}
            for c in planes
            for k in {decodes.low, decodes.high}
            for d in columns
        )

    def _with_ends(self, values: Values) -> Values:
        """A far plane on both context axes, and before the first a plane of tokens that attend to themselves alone."""
        self._far_decode_contexts, columns = with_far_end(self._decode_contexts, np.moveaxis(values, 3, 0))
        self._far_contexts, planes = with_far_end(self._contexts, np.moveaxis(columns, 2, 0))
        rows = np.moveaxis(planes, 2, 0)  # tokens, contexts, decode contexts, decodes
        floors = [
            np.minimum(row[0], packed_floor(tokens, self._far_contexts, row, rows[0, 0]))
            for tokens, row in zip(self._tokens, rows, strict=True)
        ]
        return np.moveaxis(np.concatenate([np.array(floors)[:, None], rows], axis=1), 2, 3)


def _place(axis: Sequence[float], value: float) -> _Place:
    low, high, inside = bracket(axis, value)
    return _Place(low, high, 0.0 if low == high else (value - axis[low]) / (axis[high] - axis[low]), inside)


def _between(knots: Sequence[float], value: float, last: float) -> _Place:
    """The knots around a value, inside if it lies between the first and ``last``; the first is held below itself."""
    i = min(max(0, bisect_right(knots, value) - 1), len(knots) - 2)
    share = min(1.0, max(0.0, (value - knots[i]) / (knots[i + 1] - knots[i])))
    return _Place(i, i + 1, share, knots[0] <= value <= last)


def _blend(low: float, high: float, share: float) -> float:
    """From ``low`` at share 0 to ``high`` at 1, and on beyond it where it never falls."""
    return low + share * (high - low) if share <= 1 else high + (share - 1) * max(0.0, high - low)
