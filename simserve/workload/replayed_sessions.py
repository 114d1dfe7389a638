"""The requests of a trace with sessions, at any rate: sessions start denser, and wait as long as before."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from simserve.clients.plan import NOBODY, Turns
from simserve.request import IntColumn, RequestTable
from simserve.workload.content import taken
from simserve.workload.sessions import OWN_TIME, SessionColumns, before_in_session, earliest_times, turns


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
    sorted_table = replace(table, arrival_ns=times[order], content=content, tenants=None, **columns)
    return sorted_table, turns(session[order], wait_ns[order])
