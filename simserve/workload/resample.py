"""Another trace like this one: the circular block bootstrap of Politis and Romano (1992).

Blocks of consecutive requests are drawn with replacement from the trace closed to a circle, and laid end to end. What
belongs together within a block (bursts, sessions of long prompts) stays together; only where blocks meet it is torn.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simserve.request import IntColumn, RequestTable
from simserve.workload.content import taken
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import MAX_SPAN_S


def circular_blocks(num_rows: int, block_rows: int, rng: np.random.Generator) -> IntColumn:
    """``num_rows`` rows in blocks of ``block_rows`` consecutive ones, modulo ``num_rows``; the last is cut to fit. The
    first row of each block is uniform, hence so is every row of the result."""
    first = rng.integers(0, num_rows, -(-num_rows // block_rows))
    return ((first[:, None] + np.arange(block_rows)) % num_rows).ravel()[:num_rows]


def blocks_in_words(block_requests: int, of_sessions: bool) -> str:
    """What is drawn, for notes."""
    size = f"whole sessions, about {block_requests:,}" if of_sessions else f"{block_requests:,} consecutive"
    return f"blocks of {size} requests"


def resampled(table: RequestTable, rows: IntColumn) -> RequestTable:
    """The given rows of a table, each with the gap before it; the first arrives at 0. Raises OverflowError when they
    would span more than ``MAX_SPAN_S``."""
    arrival_ns = drawn_times(table.arrival_ns, rows)
    names = ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
    content = taken(table.content, rows) if table.content else None
    columns = {name: getattr(table, name)[rows] for name in names}
    tenants = None if table.tenants is None else replace(table.tenants, of=table.tenants.of[rows])
    return RequestTable(arrival_ns, **columns, content=content, tenants=tenants)


def drawn_times(arrival_ns: IntColumn, rows: IntColumn) -> IntColumn:
    """Times from 0 on at which the given rows come, each as long after the one before as it came in the trace.

    The gap that closes the circle, before row 0, is the mean of the others, so that uniform rows keep the mean gap in
    expectation. Raises OverflowError when they would span more than ``MAX_SPAN_S``.
    """
    span_ns, num_gaps = int(arrival_ns[-1] - arrival_ns[0]), len(arrival_ns) - 1
    closing_ns = round(span_ns / num_gaps) if num_gaps else 0
    gaps_ns = np.diff(arrival_ns, prepend=arrival_ns[0] - closing_ns)[rows]
    gaps_ns[0] = 0
    if gaps_ns.sum(dtype=np.float64) > MAX_SPAN_S * NS_PER_S:
        raise OverflowError
    times_ns: IntColumn = gaps_ns.cumsum()
    return times_ns
