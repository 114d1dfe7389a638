"""Sessions fitted: when they start, how many turns they have, what a turn adds to its context, and how long it comes
after the answer before it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.clients.plan import NOBODY
from simserve.request import IntColumn, RequestTable
from simserve.trace_tools.fit_arrivals import Clock, nearest_arrivals, rounded
from simserve.trace_tools.fit_lengths import fitted_lengths
from simserve.workload.sessions import NO_SESSION, OWN_TIME, before_in_session
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import Trace

MOST = 0.5  # share of later turns that must wait for the answer before them
STEADY = 0.3  # cv of waits below which they are one and the same

FloatColumn = npt.NDArray[np.float64]


class Told(NamedTuple):
    """What requests tell of their sessions: starts and turns of each; of later turns how many tokens they add to the
    prompt and answer before them (below 1: the context shrinks) and how long they wait."""

    starts_ns: IntColumn
    first_prompts: IntColumn
    turns: IntColumn
    new_tokens: IntColumn
    waits_s: FloatColumn

    @classmethod
    def of(cls, requests: Trace | RequestTable) -> Told:
        """Requests in order of arrival; who belongs to no session is one alone."""
        session = requests.session
        assert session is not None
        before = before_in_session(session)
        later = before != NOBODY
        at, prompts = requests.arrival_ns, requests.num_prompt_tokens
        context = (prompts + requests.num_output_tokens)[before[later]]
        alone = np.ones(int((session == NO_SESSION).sum()), np.int64)
        turns = np.concatenate([np.unique(session[session != NO_SESSION], return_counts=True)[1], alone])
        waits_s = (at[later] - at[before[later]]) / NS_PER_S
        return cls(at[~later], prompts[~later], turns, prompts[later] - context, waits_s)


def plays_sessions(trace: Trace) -> bool:
    """Whether most later turns of a trace's sessions wait for the answer before them."""
    if trace.session is None or trace.wait_ns is None:
        return False
    later = before_in_session(trace.session) != NOBODY
    return bool((trace.wait_ns[later] != OWN_TIME).mean() > MOST) if later.any() else False


def session_workload(trace: Trace, num_windows: int | None, tick_ns: int) -> dict[str, Any]:
    """``workload:`` with ``sessions``. Contexts stay within the longest prompt of the trace; turns whose context
    shrinks add nothing here."""
    told = Told.of(trace)
    clock = Clock(int(told.starts_ns[-1]), tick_ns)
    grown = told.new_tokens[told.new_tokens >= 1]
    sessions = {
        "turns": fitted_lengths(told.turns),
        "new_tokens": fitted_lengths(grown) if len(grown) else {"fixed": 1},
        **_think_time(told.waits_s),
        "max_prompt_tokens": int(trace.num_prompt_tokens.max()),
    }
    return {
        "num_requests": len(trace),
        "arrivals": nearest_arrivals(told.starts_ns, num_windows, clock),
        "prompt_tokens": fitted_lengths(told.first_prompts),
        "output_tokens": fitted_lengths(trace.num_output_tokens),
        "sessions": sessions,
    }


def _think_time(waits_s: FloatColumn) -> dict[str, Any]:
    mean = float(waits_s.mean())
    if not mean:
        return {}
    if waits_s.std() < STEADY * mean:
        return {"think_time_s": {"fixed": rounded(mean)}}
    return {"think_time_s": {"exponential": {"mean": rounded(mean)}}}


def session_columns(requests: Trace | RequestTable, clock: Clock) -> dict[str, FloatColumn]:
    """What of sessions is compared, beside the lengths of all prompts and answers."""
    told = Told.of(requests)
    return {
        "gap_s": clock.gaps_s(told.starts_ns),
        "session_turns": told.turns.astype(np.float64),
        "new_tokens": told.new_tokens[told.new_tokens >= 1].astype(np.float64),
        "wait_s": told.waits_s,
    }


def num_shrinking(trace: Trace) -> int:
    """Turns whose prompt is no longer than the prompt and answer before it."""
    return int((Told.of(trace).new_tokens < 1).sum())
