"""A trace cut, thinned, or laid over itself.

Thinning keeps each request by an independent coin, superposition lays shifted copies over the trace: what fewer or more
people of the same kind would send. Neither squeezes time, as ``workload.rate_scale`` does, which makes every burst as
many times denser. The requests of a session stay together: one coin and one shift for all of them.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np

from simserve.clients.plan import NOBODY
from simserve.errors import TraceError
from simserve.request import IntColumn
from simserve.scenario.fields import MAX_REQUESTS
from simserve.workload.content import set_apart, taken
from simserve.workload.sessions import NO_SESSION, OWN_TIME, before_in_session
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import Trace

DEFAULT_SHIFT = 0.1  # of the span: bursts part, and the curve of a day stays


def rows_of(trace: Trace, rows: IntColumn, arrival_ns: IntColumn | None = None) -> Trace:
    """The given rows of a trace, in order of ``arrival_ns`` (one per given row; by default their own), the earliest at
    0. A row may come more than once. At least one row."""
    times = trace.arrival_ns[rows] if arrival_ns is None else arrival_ns
    order = np.argsort(times, kind="stable")
    rows, times = rows[order], times[order]
    values = {field.name: getattr(trace, field.name) for field in fields(trace)}
    changed: dict[str, Any] = {name: column[rows] for name, column in values.items() if isinstance(column, np.ndarray)}
    if trace.content is not None:
        changed["content"] = taken(trace.content, rows)
    if trace.tenants is not None:
        changed["tenants"] = replace(trace.tenants, of=trace.tenants.of[rows])
    return _freed(replace(trace, **(changed | {"arrival_ns": times - times[0]})))


def _freed(trace: Trace) -> Trace:
    """Whose predecessor in a session is gone comes at the time that the trace has for it."""
    if trace.wait_ns is None or trace.session is None:
        return trace
    wait_ns = np.where(before_in_session(trace.session) == NOBODY, OWN_TIME, trace.wait_ns)
    return replace(trace, wait_ns=None if (wait_ns == OWN_TIME).all() else wait_ns)


def sliced(trace: Trace, from_s: float, to_s: float, head: int | None) -> Trace:
    """The requests that arrive from ``from_s`` on and before ``to_s``, seconds from the first arrival, and of these the
    first ``head``. Raises TraceError when there is none."""
    seconds = trace.arrival_ns / NS_PER_S
    rows = np.flatnonzero((seconds >= from_s) & (seconds < to_s))[:head]
    if not len(rows):
        span = f"the last of {len(trace):,} comes at {seconds[-1]:,.9g} s"
        raise TraceError(f"--from, --to: must leave a request (none comes from {from_s:g} to {to_s:g} s; {span})")
    return rows_of(trace, rows)


def scaled(trace: Trace, rate: float, seed: int, shift_s: float | None = None, same_prompts: bool = False) -> Trace:
    """``rate`` times as many requests over the same span: below 1 by thinning, above by superposition, where a copy for
    each whole number is complete and one for the rest is thinned.

    The trace itself stays where it is; each copy is shifted by a time of its own, uniform up to ``shift_s``, on a
    circle that closes the trace by its mean gap. A copy's prompts are other people's (they begin alike among
    themselves, and not like the trace's) unless ``same_prompts``. Raises TraceError when nothing is left, or more than
    a workload may have.
    """
    if rate * len(trace) > MAX_REQUESTS:
        raise TraceError(f"--rate: must leave at most {MAX_REQUESTS:,} requests (got {rate:g} × {len(trace):,})")
    if same_prompts and trace.kept is not None and rate > 1:
        raise TraceError(
            "--same-prompts: must be left out for a trace that tells what turns keep of their session, of which a copy "
            "has its own"
        )
    units, starts_ns = _units(trace)
    span_ns = int(trace.arrival_ns[-1])
    period_ns = span_ns + round(span_ns / max(1, len(trace) - 1))
    longest_ns = DEFAULT_SHIFT * span_ns if shift_s is None else shift_s * NS_PER_S
    coins, shifts = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i,))) for i in range(2))
    copies = []
    for copy in range(math.ceil(rate)):
        share = min(1.0, rate - copy)
        is_kept = coins.random(len(starts_ns)) < share if share < 1 else np.ones(len(starts_ns), bool)
        shift_ns = int(shifts.uniform(0, longest_ns)) if copy else 0
        moved_ns = (starts_ns + shift_ns) % max(1, period_ns) - starts_ns if copy else np.zeros_like(starts_ns)
        rows = np.flatnonzero(is_kept[units])
        copies.append((rows, trace.arrival_ns[rows] + moved_ns[units[rows]]))
    return _laid_over(trace, copies, same_prompts)


def _units(trace: Trace) -> tuple[IntColumn, IntColumn]:
    """For each row its unit (its session, or itself alone), and when each unit's first request comes."""
    keys = np.arange(len(trace)) + (0 if trace.session is None else int(trace.session.max()) + 1)
    if trace.session is not None:
        keys = np.where(trace.session == NO_SESSION, keys, trace.session)
    _, first, units = np.unique(keys, return_index=True, return_inverse=True)
    return units.astype(np.int64), trace.arrival_ns[first]


def _laid_over(trace: Trace, copies: list[tuple[IntColumn, IntColumn]], same_prompts: bool) -> Trace:
    """All copies as one trace; sessions of different copies are different ones."""
    rows = np.concatenate([rows for rows, _ in copies])
    times_ns = np.concatenate([times for _, times in copies])
    if not len(rows):
        raise TraceError(f"--rate: must leave a request (none of {len(trace):,} is left); raise it, or change --seed")
    copy = np.repeat(np.arange(len(copies)), [len(rows) for rows, _ in copies])
    order = np.argsort(times_ns, kind="stable")
    made, copy = rows_of(trace, rows[order], times_ns[order]), copy[order]
    if made.session is not None:
        apart = copy * (int(made.session.max()) + 1)
        made = replace(made, session=np.where(made.session == NO_SESSION, NO_SESSION, made.session + apart))
    if made.content is not None and not same_prompts:
        made = replace(made, content=set_apart(made.content, copy))
    return made
