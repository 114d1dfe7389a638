"""How often each point is timed, and in what order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from calibrate.grid import Point
from calibrate.options import CalibrateOptions, GridSize

ANCHORS_PER_ROUND = 4
LONG_STEP_S = 0.25  # beyond it a cold start no longer shows, and waiting for it twice would
ALONE_S = 1.0
_REPEATS: dict[GridSize, int] = {"quick": 2, "standard": 3, "full": 5}
_POINT_BUDGET_S: dict[GridSize, float] = {"quick": 0.5, "standard": 1.5, "full": 12.0}
_LEAST_REPEATS = 2
_CHAIN_BUDGET_S = 0.6  # a visit of a chain, whose steps are many
_LEAST_IN_CHAIN = 2


@dataclass(frozen=True)
class Plan:
    """Points, how many clean samples each should get (fewer for steps that would overrun ``point_budget_s``), the seed
    of their order, and the ``anchor``: the point that is visited several times a round, to see the machine drift.
    ``as_served``: a step follows one of another shape, as it does in a serving engine. ``chain_visits``: how often a
    chain of decodes is timed, at most."""

    points: tuple[Point, ...]
    repeats: int
    point_budget_s: float
    seed: int
    anchor: Point | None = None
    as_served: bool = False
    chain_visits: int = 2

    def num_warm_ups(self, step_s: float | None) -> int:
        """Untimed steps before a timed one of ``step_s`` (unknown at the first visit)."""
        return num_warm_ups(step_s, self.as_served)

    def is_enough(self, step_s: float) -> bool:
        """Whether a step of ``step_s`` is timed once and no more, cold as it is: in a serving engine's own order, where
        other processes time it again, what a first step takes longer is nothing beside a step of a second."""
        return self.as_served and step_s > ALONE_S

    def wanted(self, step_s: float | None) -> int:
        """Samples of a point whose step takes ``step_s`` (unknown before its first visit)."""
        if step_s is None:
            return self.repeats
        if self.is_enough(step_s):
            return 1
        return max(min(_LEAST_REPEATS, self.repeats), min(self.repeats, int(self.point_budget_s / step_s)))

    def wanted_of(self, point: Point, step_s: float | None) -> int:
        """As ``wanted``; of a chain ``chain_visits``, and one that takes longer than a point's budget once."""
        if not point.num_repeats:
            return self.wanted(step_s)
        if step_s and step_s * (1 + self.num_repeats(point, step_s)) > self.point_budget_s:
            return 1
        return min(self.chain_visits, self.wanted(step_s))

    def num_repeats(self, point: Point, step_s: float) -> int:
        """Steps of its kind before the last of a chain, whose steps take ``step_s``: those it names, or fewer."""
        return max(min(_LEAST_IN_CHAIN, point.num_repeats), min(point.num_repeats, int(_CHAIN_BUDGET_S / step_s)))

    def rounds(self) -> Iterator[list[Point]]:
        """Round after round over all points, each in another order, so that slow drift of the machine spreads over the
        grid instead of passing for its shape. There are twice as many rounds as repeats: the second half is for points
        that were disturbed."""
        for number in range(2 * self.repeats):
            order = list(self.points)
            random.Random(f"{self.seed}/{number}").shuffle(order)
            yield order


def make_plan(points: Sequence[Point], options: CalibrateOptions) -> Plan:
    """The plan of ``options``."""
    repeats = options.repeats or _REPEATS[options.grid]
    budget_s, anchor = _POINT_BUDGET_S[options.grid], choose_anchor(points)
    return Plan(tuple(points), repeats, budget_s, options.seed, anchor, as_served=options.engine is not None)


def choose_anchor(points: Sequence[Point]) -> Point | None:
    """The decode step in the middle of the fitted ones, by tokens in the cache: neither pure overhead nor long."""
    decodes = [point for point in points if point.phase == "decode" and point.in_table and not point.held_out]
    return (
        sorted(decodes, key=lambda point: (point.cache_tokens, point.batch_size))[len(decodes) // 2]
        if decodes
        else None
    )


def num_warm_ups(step_s: float | None, as_served: bool = False) -> int:
    """Untimed steps before a timed one. Each shape is warmed twice at its first visit (the first step is 1.3 to 20
    times slower) and once at later ones, because other shapes ran in between; long steps need no more than one.
    ``as_served`` once at its first visit and never again: a step that repeats another finds its caches warm, which
    made batches of 4 to 8 up to 8 % faster than they are in a serving engine."""
    if as_served:
        return int(step_s is None)
    if step_s is None:
        return 2
    return 1 if step_s < LONG_STEP_S else 0
