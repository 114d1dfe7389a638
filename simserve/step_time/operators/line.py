"""Seconds over one number: operators that only see how many tokens, or how many sequences, a step has."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.step_time.operators.grid import bracket


class Line:
    """Straight between measured sizes, which are returned exactly; nothing is smoothed, since a kernel for more tokens
    really can be faster. Below the first size its value; beyond the last the slope of the upper half, never falling."""

    def __init__(self, sizes: Sequence[float], seconds: Sequence[float]) -> None:
        self.sizes = [float(size) for size in sizes]
        self.seconds = [float(value) for value in seconds]

    def at(self, size: float) -> tuple[float, bool]:
        """Seconds, and whether ``size`` lies outside what was measured."""
        i, j, inside = bracket(self.sizes, size)
        low, high = self.seconds[i], self.seconds[j]
        if i == j:
            return low, not inside
        if not inside:
            high = max(low, high)
            return self.seconds[j] + (size - self.sizes[j]) * (high - low) / (self.sizes[j] - self.sizes[i]), True
        return low + (size - self.sizes[i]) * (high - low) / (self.sizes[j] - self.sizes[i]), False


NO_TIME = Line([1.0], [0.0])
