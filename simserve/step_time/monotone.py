"""More cached context never makes a step shorter; measured medians do not always know."""

from __future__ import annotations

from collections.abc import Sequence


def non_decreasing(values: Sequence[float]) -> tuple[float, ...]:
    """The non-decreasing sequence nearest to ``values`` in least squares: neighbours out of order share their mean
    (pool adjacent violators; Ayer et al., Annals of Mathematical Statistics, 1955). Sorted input comes back as it is.

    Applied along context only. Over batch size and new tokens a step really can get shorter where another kernel takes
    over, and that must not be smoothed away.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pool, size = float(value), 1
        while pools and pools[-1][0] > pool:
            before, count = pools.pop()
            pool = (before * count + pool * size) / (count + size)
            size += count
        pools.append((pool, size))
    return tuple(pool for pool, size in pools for _ in range(size))
