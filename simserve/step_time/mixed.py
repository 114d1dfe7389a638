"""Mixed steps: what measured ones take against the composition of prefill and decode.

A correction depends on the new tokens of the chunk and the number of decodes alone, never on contexts, so a ramp stays
a ramp. Bilinear in the logarithms of both; outside what was measured, as at the nearest measured edge.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from simserve.step_time.profile_schema import MixedCorrection
from simserve.step_time.stretch import Ramp

Correct = Callable[[Ramp, int, int], Ramp]


def corrector(correction: MixedCorrection | None) -> Correct:
    """The function that corrects the ramp of a composed step of some new tokens beside some decodes."""
    if correction is None:
        return lambda ramp, _new, _decodes: ramp
    value = _Interpolated(correction)
    if correction.form == "added":

        def add(ramp: Ramp, new: int, decodes: int) -> Ramp:
            return ramp._replace(first_s=ramp.first_s + value(new, decodes))

        return add

    def multiply(ramp: Ramp, new: int, decodes: int) -> Ramp:
        ratio = value(new, decodes)
        return ramp._replace(first_s=ramp.first_s * ratio, slope_s=ramp.slope_s * ratio)

    return multiply


class _Interpolated:
    """``correction.values`` between and beyond its axes; every asked-for cell is computed once."""

    def __init__(self, correction: MixedCorrection) -> None:
        self._rows = [math.log(value) for value in correction.num_new_tokens]
        self._columns = [math.log(value) for value in correction.num_decodes]
        self._values = correction.values
        self._known: dict[tuple[int, int], float] = {}

    def __call__(self, num_new_tokens: int, num_decodes: int) -> float:
        key = num_new_tokens, num_decodes
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._at(math.log(num_new_tokens), math.log(num_decodes))
        return found

    def _at(self, row: float, column: float) -> float:
        i, j, down = place(self._rows, row)
        k, m, right = place(self._columns, column)
        upper = (1 - right) * self._values[i][k] + right * self._values[i][m]
        lower = (1 - right) * self._values[j][k] + right * self._values[j][m]
        return (1 - down) * upper + down * lower


def place(axis: Sequence[float], value: float) -> tuple[int, int, float]:
    """The knots around ``value`` and how far it is from the first to the second; at the ends both are the last one."""
    j = bisect_right(axis, value)
    if j == 0:
        return 0, 0, 0.0
    if j == len(axis):
        return j - 1, j - 1, 0.0
    return j - 1, j, (value - axis[j - 1]) / (axis[j] - axis[j - 1])
