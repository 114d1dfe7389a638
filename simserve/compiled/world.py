"""All that changes in a compiled run: counters, a row per request, and a few lists; ``at`` names their columns.

Names are those of ``Pool``, ``DecodeCohort``, ``PagedAllocator``, ``Stretch``, ``TokenGaps`` and ``Recorder``, whose
rules the other modules here follow. Few arrays of plain numbers: the compiler takes minutes over records of many
fields.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.compiled import at
from simserve.records import OccupancyRecords, SpanRecords, itl_bin_edges_s
from simserve.request import IntColumn

NEVER = NOBODY = -1
MAX_RAMPS = 64
SPAN_ROWS, OCCUPANCY_ROWS = 1 << 16, 1 << 16  # of the buffers that the caller empties

FloatColumn = npt.NDArray[np.float64]
Asked = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


class Limits(NamedTuple):
    """What bounds a run, as counters in this order; blocks are usable ones."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    watermark_blocks: int
    num_usable_blocks: int
    is_chunked: bool


class World(NamedTuple):
    """One compiled run; shape (rows, columns) where a thing has columns."""

    counters: IntColumn
    costs: FloatColumn
    requests: IntColumn
    finishes: IntColumn  # heap: the cohort's clock at the last token, then admission
    prefills: IntColumn  # of the decision
    joined: IntColumn  # who joined the cohort since its last decode step, and when they emitted
    ramps: IntColumn  # of the stretch
    ramps_s: FloatColumn  # the sum is the time before each
    admitted: IntColumn  # by the last decision
    preempted: IntColumn
    back: IntColumn  # heap of preempted requests by id
    phases: IntColumn  # growing sequences by where in a block they are
    free_slots: IntColumn  # heap
    itl_counts: IntColumn
    spans: IntColumn  # the row after the last one written is the open one
    occupancy: IntColumn


def make_world(asked: Asked, limits: Limits, costs: tuple[float, ...]) -> World:
    """A run that has not begun; ``asked`` are arrivals, prompt tokens, output tokens, and who is refused."""

    def zeros(*shape: int) -> IntColumn:
        return np.zeros(shape, np.int64)

    seqs = limits.max_num_seqs
    requests = zeros(len(asked[0]), at.NUM_REQUEST_COLUMNS)
    requests[:, : len(asked)] = np.column_stack(asked)
    requests[:, [at.JOINED_CLOCK, at.OPEN_GAP_NS, at.JOINED_AT]] = NEVER
    requests[:, at.FIRST_SCHEDULED_NS : at.END_NS + 1] = NEVER
    counters = zeros(at.NUM_COUNTERS)
    counters[: len(limits)] = limits
    counters[[at.NUM_REQUESTS, at.FREE_BLOCKS, at.NUM_FREE_SLOTS]] = len(requests), limits.num_usable_blocks, seqs
    counters[[at.COHORT_LAST, at.PARTIAL]] = NOBODY
    return World(
        counters,
        np.array([*costs, 0.0]),
        requests,
        finishes=zeros(4 * seqs + 64, 4),
        prefills=zeros(seqs + 1, 3),
        joined=zeros(seqs + 1, 2),
        ramps=zeros(MAX_RAMPS, 2),
        ramps_s=np.zeros((MAX_RAMPS, 3)),
        admitted=zeros(seqs + 1),
        preempted=zeros(seqs + 1),
        back=zeros(seqs + 1),
        phases=zeros(limits.block_size),
        free_slots=np.arange(seqs, dtype=np.int64),
        itl_counts=zeros(len(itl_bin_edges_s()) - 1),
        spans=zeros(SPAN_ROWS, len(SpanRecords.COLUMNS)),
        occupancy=zeros(OCCUPANCY_ROWS + 4 * seqs, len(OccupancyRecords.COLUMNS)),
    )
