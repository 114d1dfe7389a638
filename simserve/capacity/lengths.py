"""How long runs must be near saturation, where a queue takes ever longer to forget that it began empty.

A queue at utilisation ρ forgets its past over about (c_a² + c_s²) / (1 − ρ)² requests (heavy traffic: Whitt, "Planning
queueing simulations", Management Science 35, 1989; Asmussen, Applied Probability and Queues, X.4), however many its
servers are. A run that is shorter shows too short a wait, and capacities come out too high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RELAXATIONS = 20.0  # in a run, times 1 / (1 − ρ)²
LONGEST = 16  # times the requests that the scenario asks for
NEAREST, FARTHEST = 0.98, 0.9  # of saturation: how near a run is ever trusted, and how far is never too near


@dataclass(frozen=True)
class Lengths:
    """Run lengths as multiples of the scenario's ``num_requests``; ``can_grow``: they are generated, not a trace's.
    ``saturation`` null where a closed loop bounds its own queue."""

    num_requests: int
    can_grow: bool
    saturation: float | None

    @property
    def longest(self) -> int:
        """The largest multiple."""
        return LONGEST if self.can_grow else 1

    @property
    def settled_load(self) -> float:
        """The largest load at which the longest runs are long enough."""
        assert self.saturation is not None, "an open loop"
        share = 1 - math.sqrt(RELAXATIONS / (self.longest * self.num_requests))
        return self.saturation * min(NEAREST, max(FARTHEST, share))

    def at(self, load: float) -> int:
        """The power of two that a load needs, at most the longest."""
        if self.saturation is None or not self.can_grow:
            return 1
        idle = max(1 - load / self.saturation, 1e-6)
        needed = RELAXATIONS / idle**2 / self.num_requests
        return int(min(LONGEST, 2 ** math.ceil(math.log2(max(1.0, min(needed, LONGEST))))))
