"""The largest load that holds every SLO: look along the whole axis, close in, replicate until it is narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simserve.capacity.root import pooled, pooled_root
from simserve.knee.bootstrap import without_interval
from simserve.tasks.intervals import Interval

FloatArray = npt.NDArray[np.float64]
# Used shares of limits, by replication, load and SLO; above 1 fails. The flag: a run may end once its backlog grows.
UsedShares = Callable[[Sequence[float], int, bool], FloatArray]
Distinct = Callable[[Sequence[float]], list[float]]

SHARES_OF_TOP = (0.01, 0.1, 0.25, 0.45, 0.65, 0.8, 0.9, 1.0)
WIDEST_BRACKET = 1.4
NUM_RATES = 5


@dataclass(frozen=True)
class Effort:
    """How narrow (``tolerance``: half-width over value) and how long (replications, doubled up to the maximum)."""

    replications: int = 4
    max_replications: int = 32
    tolerance: float = 0.02
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """``limited_by``: "slo", "saturation" (every SLO holds up to ``top``), or "nowhere" (none holds even at a hundredth
    of it: no capacity). ``loads`` are those that were simulated with ``replications``."""

    capacity: Interval
    limited_by: str
    loads: tuple[float, ...]
    replications: int


def find_capacity(used: UsedShares, top: float, effort: Effort, distinct: Distinct) -> Found:
    """The largest load up to ``top`` whose mean used share is at most 1.

    Loads over the whole axis are looked at first, for latency need not grow with load everywhere (static groups fill
    slowly at low load); the largest that holds and its successor are the bracket. ``distinct`` makes loads that can be
    set of any numbers.
    """
    look = distinct([share * top for share in SHARES_OF_TOP])
    holds = pooled(used(look, effort.replications, True)) <= 1
    if holds[-1]:
        return Found(_nothing(effort), "saturation", tuple(look), effort.replications)
    if not holds.any():
        return Found(_nothing(effort), "nowhere", tuple(look), effort.replications)
    last = int(np.flatnonzero(holds)[-1])
    low, high = _narrowed(used, look[last], look[last + 1], effort, distinct)
    return _replicated(used, _rates(low, high, top, distinct), top, effort, distinct)


def _narrowed(used: UsedShares, low: float, high: float, effort: Effort, distinct: Distinct) -> tuple[float, float]:
    """Halve the bracket on a log scale until five rates across it lie close enough to interpolate between."""
    while high / low > WIDEST_BRACKET:
        (middle,) = distinct([math.sqrt(low * high)])
        if middle in (low, high):
            break
        if pooled(used([middle], effort.replications, True))[0] <= 1:
            low = middle
        else:
            high = middle
    return low, high


def _rates(low: float, high: float, top: float, distinct: Distinct) -> list[float]:
    """Rates across the bracket, a little beyond both ends, so that a noisy end does not cut the root off."""
    step = (high / low) ** (1 / (NUM_RATES - 2))
    begin, end = low / math.sqrt(step), min(top, high * math.sqrt(step))
    return distinct([begin * (end / begin) ** (i / (NUM_RATES - 1)) for i in range(NUM_RATES)])


def _replicated(used: UsedShares, loads: list[float], top: float, effort: Effort, distinct: Distinct) -> Found:
    """Double the replications until the interval is narrow; a root that wanders off the rates pulls them along."""
    replications = effort.replications
    while True:
        shares = used(loads, replications, False)
        found = pooled_root(np.array(loads), shares, top, effort.seed)
        wider = _extended(loads, pooled(shares), top, distinct)
        if len(wider) > len(loads):
            loads = wider
        elif _narrow(found, effort.tolerance) or replications >= effort.max_replications:
            return Found(found, "slo", tuple(loads), replications)
        else:
            replications = min(2 * replications, effort.max_replications)


def _extended(loads: list[float], shares: FloatArray, top: float, distinct: Distinct) -> list[float]:
    """One more rate on the side where the root has left; the same rates when it has not, or when enough was tried."""
    if len(loads) >= 2 * NUM_RATES:
        return loads
    if shares[-1] <= 1 and loads[-1] < top:
        return distinct([*loads, min(top, loads[-1] ** 2 / loads[-2])])
    return distinct([*loads, loads[0] ** 2 / loads[1]]) if shares[0] > 1 else loads


def _narrow(found: Interval, tolerance: float) -> bool:
    value, low, high = found["value"], found["low"], found["high"]
    return value is not None and low is not None and high is not None and (high - low) / 2 <= tolerance * value


def _nothing(effort: Effort) -> Interval:
    return without_interval(None, effort.replications)
