"""The requests of a trace in its sessions: at any rate (sessions start denser, and wait as long as before), or played
one after the other by the clients of a closed loop."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from simserve.clients.plan import NOBODY, Turns
from simserve.request import IntColumn, RequestTable
from simserve.workload.content import taken
from simserve.workload.sessions import OWN_TIME, SessionColumns, before_in_session, earliest_times, following, turns


def in_sessions(
    table: RequestTable, session: IntColumn, wait_ns: IntColumn, own_ns: IntColumn
) -> tuple[RequestTable, Turns]:
    """The table with ``own_ns`` as the times of those who have a time of their own, sorted anew, and who follows whom.
    Rows come in order of arrival, ``wait_ns`` OWN_TIME where a request waits for none."""
    before = before_in_session(session)
    waits = (wait_ns != OWN_TIME) & (before != NOBODY)
    times = earliest_times(own_ns, SessionColumns(session, before, waits, wait_ns))
    order = np.argsort(times, kind="stable")
    columns = {
        each.name: column[order]
        for each in fields(table)
        if isinstance(column := getattr(table, each.name), np.ndarray) and each.name != "arrival_ns"
    }
    content = None if table.content is None else taken(table.content, order)
    tenants = None if table.tenants is None else replace(table.tenants, of=table.tenants.of[order])
    sorted_table = replace(table, arrival_ns=times[order], content=content, tenants=tenants, **columns)
    return sorted_table, turns(session[order], wait_ns[order])


def whole_sessions(session: IntColumn, wait_ns: IntColumn | None) -> Turns:
    """Every turn follows the one before it in its session: in a closed loop no request has a time of its own, and where
    the trace tells no wait it is OWN_TIME, for ``with_thoughts`` to fill. Rows come in the order in which sessions are
    taken up."""
    untold = np.full(len(session), OWN_TIME, np.int64)
    return Turns(following(before_in_session(session)), untold if wait_ns is None else wait_ns)


def with_thoughts(turns: Turns, think_ns: IntColumn | None) -> Turns:
    """The same turns; whose wait the trace does not tell comes when its client has thought."""
    thought_ns = 0 if think_ns is None else think_ns
    return replace(turns, wait_ns=np.where(turns.wait_ns == OWN_TIME, thought_ns, turns.wait_ns))
