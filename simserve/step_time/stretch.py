"""How long a repeated decision takes: the one place where step durations are summed.

A step-time model describes a decision that repeats as ramps: from step ``k`` on, durations start at ``first_s`` and
change by ``slope_s`` per step for ``num_steps`` steps. Contexts grow by a constant per step and every model here is
piecewise linear in context, so a ramp is exact, and a span of any number of steps is a handful of closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from simserve.request import Batch
from simserve.step_time.source import StepTimeSource

NS_PER_S = 1_000_000_000
UNBOUNDED = 1 << 62


class Ramp(NamedTuple):
    """Durations ``first_s + slope_s * j`` for ``0 <= j < num_steps``."""

    first_s: float
    slope_s: float
    num_steps: int
    extrapolated: bool = False

    def at(self, index: int) -> float:
        """Duration number ``index``; monotone in it, in floating point too."""
        return self.first_s + self.slope_s * index

    def sum_s(self, num_steps: int) -> float:
        """The first ``num_steps`` durations together."""
        return num_steps * self.first_s + self.slope_s * (num_steps * (num_steps - 1) / 2)


class StepTime(Protocol):
    """A model of how long one step takes. It sees the shape of a batch and nothing else.

    One that reads ``Batch.max_decode_context`` says so: it has ``needs_max_decode_context = True`` besides.
    """

    source: StepTimeSource

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """The ramp that step number ``step`` (from 0) of a stretch of ``batch`` begins."""


class Stretch:
    """Consecutive steps of one decision, step k ending ``end_ns(k)`` after the first began.

    Times are a pure function of (model, batch, k), whoever asks and in whatever order: that is what makes
    fast-forward on and off agree to the nanosecond.
    """

    def __init__(self, step_time: StepTime, batch: Batch, lead_s: float = 0.0) -> None:
        self._step_time = step_time
        self._batch = batch
        self._lead_s = lead_s
        self._starts: list[int] = [0]
        self._sums_s: list[float] = [lead_s]
        self._ramps: list[Ramp] = [self._ramp(0)]

    def span_s(self, num_steps: int) -> float:
        """Duration of the first ``num_steps`` steps, seconds."""
        i = self._find(num_steps)
        return self._sums_s[i] + self._ramps[i].sum_s(num_steps - self._starts[i])

    def end_ns(self, num_steps: int) -> int:
        """End of step ``num_steps`` (from 1), in nanoseconds after the stretch began; at least 1 ns per step."""
        return max(num_steps, round(NS_PER_S * self.span_s(num_steps)))

    def steps_until(self, elapsed_ns: int) -> int:
        """The smallest n ≥ 1 whose ``end_ns(n)`` is at least ``elapsed_ns``."""
        n = max(1, self._guess(elapsed_ns / NS_PER_S))
        while self.end_ns(n) < elapsed_ns:
            n += 1
        while n > 1 and self.end_ns(n - 1) >= elapsed_ns:
            n -= 1
        return n

    def pieces(self, begin: int, end: int) -> Iterator[tuple[Ramp, int, int]]:
        """Steps ``begin`` to ``end`` (from 0, half open) as (ramp, first index in it, index after the last)."""
        i = self._find(begin + 1)
        while begin < end:
            if i == len(self._ramps):
                self._grow()
            ramp, start = self._ramps[i], self._starts[i]
            stop = min(end, start + ramp.num_steps)
            yield ramp, begin - start, stop - start
            begin, i = stop, i + 1

    def _find(self, num_steps: int) -> int:
        """Index of the ramp that holds step number ``num_steps`` (from 1)."""
        while self._starts[-1] + self._ramps[-1].num_steps < num_steps:
            self._grow()
        i = len(self._ramps) - 1
        while self._starts[i] >= num_steps and i > 0:
            i -= 1
        return i

    def _grow(self) -> None:
        ramp = self._ramps[-1]
        start = self._starts[-1] + ramp.num_steps
        self._sums_s.append(self._sums_s[-1] + ramp.sum_s(ramp.num_steps))
        self._starts.append(start)
        self._ramps.append(self._ramp(start))

    def _ramp(self, step: int) -> Ramp:
        """The ramp that begins at a step. Where whole sequences are computed again, no model is linear in the step:
        attention grows with the square of their lengths, and so each step is a ramp of its own."""
        if not self._batch.recomputes:
            return self._step_time.ramp(self._batch, step)
        return self._step_time.ramp(self._batch.at_step(step), 0)._replace(slope_s=0.0, num_steps=1)

    def _guess(self, span_s: float) -> int:
        """Near the smallest n with ``span_s(n) >= span_s``: the root of the quadratic of the ramp where it falls."""
        while True:
            ramp = self._ramps[-1]
            if self._sums_s[-1] + ramp.sum_s(min(ramp.num_steps, UNBOUNDED)) >= span_s:
                break
            self._grow()
        i = len(self._ramps) - 1
        while i > 0 and self._sums_s[i] >= span_s:
            i -= 1
        ramp, rest_s = self._ramps[i], span_s - self._sums_s[i]
        half, linear = ramp.slope_s / 2, ramp.first_s - ramp.slope_s / 2
        root = math.sqrt(max(0.0, linear * linear + 4 * half * rest_s))
        steps = 2 * rest_s / (linear + root) if linear + root > 0 else rest_s / ramp.first_s
        return self._starts[i] + min(ramp.num_steps, math.ceil(steps))
