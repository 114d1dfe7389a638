"""Resamples of a run: whole blocks of neighbouring requests, drawn again and again.

Moving blocks (Künsch, Annals of Statistics 17, 1989), because the latencies of neighbours are correlated and single
requests drawn apart would hide it; they wrap round the end (Politis and Romano, 1992), so that the first and last
requests are drawn as often as the others. Long runs are drawn in *cells* of a few neighbours: at most 2,000 of them, so
a million requests cost no more than that many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simserve.distributions import FloatColumn
from simserve.request import IntColumn

NUM_DRAWS = 999
MAX_CELLS = 2000
Weights = npt.NDArray[np.float32]  # small whole numbers: exact in float32, and twice as fast to multiply


@dataclass(frozen=True)
class Resamples:
    """``weights[r, c]``: how often resample r holds cell c, which begins at request ``starts[c]``; resample 0 is the
    run itself. ``block_requests`` is the length of a block, ``num_blocks`` how many of them a resample holds."""

    starts: IntColumn
    weights: Weights
    block_requests: int
    num_blocks: float

    def sums(self, per_request: FloatColumn) -> FloatColumn:
        """The sum over each resample of a number that each request has."""
        return np.asarray(self.weights.astype(np.float64) @ np.add.reduceat(per_request, self.starts), np.float64)

    def cell_of(self, num_requests: int) -> IntColumn:
        """The cell of each request."""
        sizes = np.diff(np.append(self.starts, num_requests))
        return np.repeat(np.arange(len(self.starts)), sizes)


def draw_blocks(num_requests: int, block_requests: int, seed: int) -> Resamples:
    """``NUM_DRAWS`` resamples, each of as many cells as the run has, in blocks of at least ``block_requests``."""
    num_cells = min(num_requests, MAX_CELLS)
    starts = np.arange(num_cells) * num_requests // num_cells
    length = min(num_cells, -(-block_requests * num_cells // num_requests))
    num_blocks = -(-num_cells // length)
    lengths = np.full(num_blocks, length)
    lengths[-1] = num_cells - length * (num_blocks - 1)  # the last is cut: a resample is as long as the run
    first = np.random.default_rng(seed).integers(0, num_cells, (NUM_DRAWS, num_blocks))
    width = num_cells + length + 1
    covered = np.cumsum(_counts(first, width) - _counts(first + lengths, width), axis=1)
    weights = np.ones((NUM_DRAWS + 1, num_cells), np.float32)
    weights[1:] = covered[:, :num_cells]
    weights[1:, :length] += covered[:, num_cells : num_cells + length]
    return Resamples(starts, weights, round(length * num_requests / num_cells), num_cells / length)


def _counts(places: IntColumn, width: int) -> IntColumn:
    """How often each row names each of ``width`` places."""
    rows = np.arange(len(places))[:, None] * width
    return np.bincount((rows + places).ravel(), minlength=len(places) * width).reshape(len(places), width)
