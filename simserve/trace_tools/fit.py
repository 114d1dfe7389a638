"""A generator fitted to a trace: a rate and a cv for each window of time (as ServeGen's clients have), lengths, and how
these go together; of the whole trace, of its sessions where turns wait for answers, or of each of its clients.

What is left out is said: sessions whose answers' times nobody knows, priorities within a client, declared maxima, and
what prompts share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simserve.errors import TraceError
from simserve.request import IntColumn
from simserve.trace_tools.clients import Clients
from simserve.trace_tools.fit_arrivals import Clock, nearest_arrivals
from simserve.trace_tools.fit_lengths import fitted_lengths
from simserve.trace_tools.fit_pairs import going_together
from simserve.trace_tools.fit_quality import Quality, quality_of
from simserve.trace_tools.fit_sessions import plays_sessions, session_workload
from simserve.workload.trace import UNDECLARED, Trace

Section = dict[str, Any]


class Fit(NamedTuple):
    """``workload`` is a scenario's section; ``quality`` is how far its requests are from the trace's."""

    workload: Section
    quality: Quality


def fit(trace: Trace, num_windows: int | None = None, clients: Clients | None = None) -> Fit:
    """The generator nearest to a trace with times, and what it misses; with ``clients`` a tenant for each.

    Arrivals are those of ``nearest_arrivals``, lengths a lognormal where it is near, and they go together as
    in ``going_together``. Where most turns of a trace wait for the answer before them, the
    generator plays sessions. Raises TraceError for clients who all come at one time.
    """
    clock = Clock.of(trace.arrival_ns)
    if clients is None and plays_sessions(trace):
        workload = session_workload(trace, num_windows, clock.tick_ns) | declared(trace.max_output_tokens)
        return Fit(workload, quality_of(trace, workload, clock, None))
    if clients is None:
        arrivals = nearest_arrivals(trace.arrival_ns, num_windows, clock)
        workload = {"num_requests": len(trace), "arrivals": arrivals, **_lengths(trace, np.arange(len(trace)))}
        workload |= declared(trace.max_output_tokens)
        return Fit(workload, quality_of(trace, workload, clock, None))
    if not clock.span_ns:
        raise TraceError("--by: needs requests that come at different times (all of these come at one)")
    tenants = {}
    for i, name in enumerate(clients.names):
        rows = np.flatnonzero(clients.of == i)
        times_ns = np.concatenate([[0], trace.arrival_ns[rows]])  # a tenant's first comes one gap after 0
        tenants[name] = {
            "arrivals": nearest_arrivals(times_ns, num_windows, clock),
            **_lengths(trace, rows),
            **declared(trace.max_output_tokens[rows]),
            **_priority(trace.priority[rows]),
        }
    workload = {"num_requests": len(trace), "tenants": tenants}
    return Fit(workload, quality_of(trace, workload, clock, clients))


def _lengths(trace: Trace, rows: IntColumn) -> Section:
    prompts, outputs = trace.num_prompt_tokens[rows], trace.num_output_tokens[rows]
    section = {"prompt_tokens": fitted_lengths(prompts), "output_tokens": fitted_lengths(outputs)}
    return section | going_together(prompts, outputs, section)


def declared(maxima: IntColumn) -> Section:
    """Of requests that all declare the same."""
    is_one = maxima[0] != UNDECLARED and (maxima == maxima[0]).all()
    return {"max_output_tokens": int(maxima[0])} if is_one else {}


def _priority(priority: IntColumn) -> Section:
    """Of a client whose requests all have the same."""
    return {"priority": int(priority[0])} if priority[0] and (priority == priority[0]).all() else {}
