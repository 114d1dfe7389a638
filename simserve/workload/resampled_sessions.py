"""Another trace of sessions like this one: the circular block bootstrap (see ``resample``) of whole sessions.

Blocks are of consecutive sessions, by their first requests; each keeps its turns, their waits, and its gap to the one
that began before it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simserve.request import Content, IntColumn, Ranges, RequestTable
from simserve.workload.content import set_apart, taken
from simserve.workload.prefixes import first_of_session
from simserve.workload.resample import circular_blocks, drawn_times
from simserve.workload.sessions import NO_SESSION

_COLUMNS = ("num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")


def drawn_sessions_anew(
    table: RequestTable, wait_ns: IntColumn | None, block_requests: int, rng: np.random.Generator, are_others: bool
) -> tuple[RequestTable, IntColumn | None]:
    """As many sessions as the table has, in blocks of about ``block_requests`` requests, and their waits. Requests
    without a session are sessions of one. With ``are_others`` a session that is drawn again is another conversation of
    the same shape, which has nothing in common with the first but a shared prefix; else it says the same.

    Raises OverflowError when they would span more than a trace may.
    """
    assert table.session is not None
    openings, of = np.unique(first_of_session(table.session), return_inverse=True)
    num_sessions, counts = len(openings), np.bincount(of)
    block = min(num_sessions, max(1, round(block_requests * num_sessions / len(table))))
    drawn = circular_blocks(num_sessions, block, rng)
    starts_ns = drawn_times(table.arrival_ns[openings], drawn)
    members = np.split(np.argsort(of, kind="stable"), np.cumsum(counts)[:-1])
    rows = np.concatenate([members[session] for session in drawn.tolist()])
    which = np.repeat(np.arange(num_sessions), counts[drawn])
    times_ns = starts_ns[which] + table.arrival_ns[rows] - table.arrival_ns[openings[of[rows]]]
    order = np.argsort(times_ns, kind="stable")
    rows, which = rows[order], which[order]
    again = replace(
        table,
        arrival_ns=times_ns[order],
        **{name: getattr(table, name)[rows] for name in _COLUMNS},
        content=None if table.content is None else taken(table.content, rows),
        tenants=None if table.tenants is None else replace(table.tenants, of=table.tenants.of[rows]),
        session=np.where(table.session[rows] == NO_SESSION, NO_SESSION, which),
    )
    if are_others and again.content is not None:
        again = replace(again, content=_others(again.content, _times_before(drawn)[which]))
    return again, None if wait_ns is None else wait_ns[rows]


def _others(content: Content | Ranges, copy: IntColumn) -> Content | Ranges:
    apart = set_apart(content, copy)
    if isinstance(content, Ranges) and isinstance(apart, Ranges):
        return replace(apart, lead_first=content.lead_first)
    return apart


def _times_before(drawn: IntColumn) -> IntColumn:
    """How often each entry stands before its place."""
    order = np.argsort(drawn, kind="stable")
    begins = np.searchsorted(drawn[order], drawn[order])
    times = np.empty_like(drawn)
    times[order] = np.arange(len(drawn)) - begins
    return times
