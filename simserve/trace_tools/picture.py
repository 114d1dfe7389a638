"""Small pictures for a terminal: a column of blocks for each number, eight heights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.request import IntColumn

BLOCKS = "▁▂▃▄▅▆▇█"
NOTHING = " "


def columns(counts: Sequence[float]) -> str:
    """One character per count: a space for nothing, else the lowest block or, in proportion to the largest, more."""
    peak = max(counts, default=0)
    if not peak:
        return NOTHING * len(counts)
    return "".join(BLOCKS[min(7, int(8 * count / peak))] if count else NOTHING for count in counts)


def log_bins(tokens: IntColumn, num_bins: int) -> tuple[IntColumn, int, int]:
    """How many lengths fall into bins of equal ratio from the shortest to the longest, and these two."""
    low, high = int(tokens.min()), int(tokens.max())
    if low == high:
        return np.array([len(tokens)], np.int64), low, high
    edges = np.geomspace(low, high, num_bins + 1)
    edges[0], edges[-1] = low, high  # as rounded they might leave out the extremes
    return np.histogram(tokens, edges)[0].astype(np.int64), low, high


def narrowed(counts: Sequence[int], width: int) -> list[int]:
    """The counts in at most ``width`` columns: neighbours are added up, so none is lost."""
    merge = -(-len(counts) // max(1, width))
    return [sum(counts[i : i + merge]) for i in range(0, len(counts), merge)]
