"""Sessions of a trace: which requests belong to one conversation, and which of them wait for the answer before.

A request that waits has no time of its own. The time that stands for it is the earliest possible: its session's start
and all waits up to it, as if answers took no time. So its wait is what lies between it and the request before it, and
stays right when a request between two others is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from simserve.clients.plan import NOBODY, Turns
from simserve.request import IntColumn
from simserve.workload.columns import Column
from simserve.workload.odd_rows import counted
from simserve.workload.refusal import refusal
from simserve.workload.timestamps import Unit, elapsed_ns

NO_SESSION = -1
OWN_TIME = -1  # in a column of waits: the request comes at its own time

BoolColumn = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SessionColumns:
    """Per row of a file: its session (numbered from 0 by first appearance, or NO_SESSION), the row before it there
    (NOBODY for the first), whether it waits for that one's answer, and how long after it it comes."""

    session: IntColumn
    before: IntColumn
    waits: BoolColumn
    wait_ns: IntColumn


def session_columns(columns: dict[str, Column], unit: Unit | None, notes: list[str]) -> SessionColumns | None:
    """What the columns tell of sessions; None where they tell nothing. ``unit`` is that of times and waits. Raises
    TraceError naming a row whose wait is none, or that stands before an earlier turn of its session."""
    if "chat" in columns and "parent" in columns:
        session = _chats(columns["chat"], columns["parent"], notes)
    elif "session" in columns:
        session = _numbers(columns["session"])
    elif "wait_before" in columns:
        raise refusal(
            columns["wait_before"].where,
            f"must say whose answer {columns['wait_before'].name} counts from (it lacks the column 'session_id')",
        )
    elif "kept" in columns:
        raise refusal(
            columns["kept"].where,
            f"must say of whose prompt and answer {columns['kept'].name} counts (it lacks the column 'session_id')",
        )
    else:
        return None
    before = before_in_session(session)
    waits, wait_ns = np.zeros(len(session), bool), np.zeros(len(session), np.int64)
    has_before = before != NOBODY
    if "wait_before" in columns and unit is not None:
        column = columns["wait_before"]
        waits = ~column.is_missing()
        wait_ns = _waits(column, unit)
        counted(notes, waits & ~has_before, f"with {column.name} and nobody before in their session: at their own time")
        waits &= has_before
    elif "turn" in columns and unit is not None:
        waits = has_before & ~columns["turn"].is_missing()
        _refuse_disorder(columns["turn"], before)
        if "wait_after" in columns:
            wait_ns[waits] = _waits(columns["wait_after"], unit)[before[waits]]
    return SessionColumns(session, before, waits, wait_ns)


def _numbers(column: Column) -> IntColumn:
    names = column.text()
    numbers, _ = pd.factorize(names.mask(names == ""), use_na_sentinel=True)
    return np.asarray(numbers, np.int64)


def _chats(chat: Column, parent: Column, notes: list[str]) -> IntColumn:
    """Sessions as trees of chats: whoever answers to nobody known starts one (Bailian writes -1 for nobody)."""
    sessions: dict[str, int] = {}
    found, unknown, num_sessions = [], [], 0
    for name, answers_to in zip(chat.text(), parent.text(), strict=True):
        session = sessions.get(answers_to, sessions.get(name) if name else None)
        unknown.append(session is None and answers_to not in ("", "-1"))
        if session is None:
            session, num_sessions = num_sessions, num_sessions + 1
        found.append(session)
        if name:
            sessions[name] = session
    counted(notes, np.array(unknown, bool), f"whose {parent.name} is not before them: each starts a session")
    return np.array(found, np.int64)


def _waits(column: Column, unit: Unit) -> IntColumn:
    waits = elapsed_ns(column.filled(column.is_missing()), unit)
    column.refuse_unless(waits >= 0, f"must be a number of {unit.name}, 0 or more")
    return waits


def _refuse_disorder(turn: Column, before: IntColumn) -> None:
    turns = turn.whole_numbers(missing=0)
    has_turn = (before != NOBODY) & ~turn.is_missing()
    turn.refuse_unless(~has_turn | (turns > turns[before]), "must be above that of the row before in its session")


def before_in_session(session: IntColumn) -> IntColumn:
    """For each row the last one before it of its session; NOBODY for the first of one, and for rows without."""
    order = np.argsort(session, kind="stable")
    before = np.full(len(session), NOBODY, np.int64)
    follows = (session[order][1:] == session[order][:-1]) & (session[order][1:] != NO_SESSION)
    before[order[1:][follows]] = order[:-1][follows]
    return before


def earliest_times(arrival_ns: IntColumn, told: SessionColumns) -> IntColumn:
    """Arrivals as they are, and where a row waits for the one before it in its session, that one's and its wait."""
    times = arrival_ns.copy()
    for i in np.flatnonzero(told.waits).tolist():
        times[i] = times[told.before[i]] + told.wait_ns[i]
    return times


def refuse_overtaken(depends: BoolColumn, told: SessionColumns, arrival_ns: IntColumn, column: Column) -> None:
    """Raise TraceError unless whoever ``depends`` on the one before it in its session comes, by time as by place, right
    after that one."""
    order = np.argsort(arrival_ns, kind="stable")
    by_time = np.full(len(order), NOBODY, np.int64)
    place = before_in_session(told.session[order])
    by_time[order] = np.where(place == NOBODY, NOBODY, order[place])
    column.refuse_unless(~depends | (by_time == told.before), "must follow the row before it in its session in time")


def waits_of(arrival_ns: IntColumn, session: IntColumn, waits: BoolColumn) -> IntColumn | None:
    """How long each row waits after the one before it in its session, by rows in order of arrival; OWN_TIME where it
    does not. None where nobody waits."""
    before = before_in_session(session)
    held = np.flatnonzero(waits & (before != NOBODY))
    if not len(held):
        return None
    wait_ns = np.full(len(session), OWN_TIME, np.int64)
    wait_ns[held] = arrival_ns[held] - arrival_ns[before[held]]
    return wait_ns


def turns(session: IntColumn, wait_ns: IntColumn) -> Turns:
    """Who follows whom, by rows in order of arrival; the first row of a session follows nobody, whatever it says."""
    before = np.where(wait_ns == OWN_TIME, NOBODY, before_in_session(session))
    return Turns(following(before), np.where(wait_ns == OWN_TIME, 0, wait_ns))


def following(before: IntColumn) -> IntColumn:
    """For each row the one that has it before; NOBODY for the last of a session."""
    held = np.flatnonzero(before != NOBODY)
    next_id = np.full(len(before), NOBODY, np.int64)
    next_id[before[held]] = held
    return next_id
