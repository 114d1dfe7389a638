"""Decode steps that follow steps of their own decision: a ratio to those that follow others, by batch size alone.

The first step of a decision finds its caches as a step of another shape left them; those behind it find them as they
left them themselves. A ratio does not depend on contexts, so a ramp stays a ramp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from simserve.step_time.mixed import place
from simserve.step_time.stretch import Ramp

Repeat = Callable[[Ramp, int, int], Ramp]


class HasRatios(Protocol):
    """Anything that tells ``ratios`` of ``batch_sizes``, which increase."""

    @property
    def batch_sizes(self) -> tuple[int, ...]: ...

    @property
    def ratios(self) -> tuple[float, ...]: ...


class Ratios(NamedTuple):
    """Ratios that were not written to a profile yet."""

    batch_sizes: tuple[int, ...]
    ratios: tuple[float, ...]


def repeater(repeated: HasRatios | None) -> Repeat:
    """The function that makes the ramp of a decode of some batch size at some step of its decision out of the ramp that
    the table gives. Ratios are linear in the logarithm of the batch size, and beyond the measured ones the nearest."""
    if repeated is None:
        return lambda ramp, _batch_size, _step: ramp
    axis, ratios = [math.log(size) for size in repeated.batch_sizes], repeated.ratios
    known: dict[int, float] = {}

    def repeat(ramp: Ramp, batch_size: int, step: int) -> Ramp:
        if step == 0:
            return ramp._replace(num_steps=1)
        ratio = known.get(batch_size)
        if ratio is None:
            i, j, share = place(axis, math.log(batch_size))
            ratio = known[batch_size] = (1 - share) * ratios[i] + share * ratios[j]
        return ramp._replace(first_s=ramp.first_s * ratio, slope_s=ramp.slope_s * ratio)

    return repeat
