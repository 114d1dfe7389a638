"""The Pareto front of throughput and latency: points that no other beats in one without losing in the other."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """For each (throughput, latency) whether no other point has at least its throughput and at most its latency, one of
    the two strictly better. Points that lack either are not on it; equal points are on it together.
    """
    known = [(i, -gain, cost) for i, (gain, cost) in enumerate(points) if gain is not None and cost is not None]
    on_front = [False] * len(points)
    least_cost = float("inf")  # of all points of strictly more throughput
    known.sort(key=lambda point: (point[1], point[2]))
    k = 0
    while k < len(known):
        best = known[k][2]
        same = [point for point in known[k:] if point[1] == known[k][1]]
        for i, _, cost in same:
            on_front[i] = cost == best and cost < least_cost
        least_cost = min(least_cost, best)
        k += len(same)
    return on_front
