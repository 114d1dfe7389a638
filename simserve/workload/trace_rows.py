"""The columns of a trace as integers, in the file's order, with what the dialect's gaps mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simserve.clients.plan import NOBODY
from simserve.request import IntColumn
from simserve.workload.columns import Column
from simserve.workload.dialects import Dialect
from simserve.workload.odd_rows import counted
from simserve.workload.owners import owners
from simserve.workload.prefix_columns import prefix_columns
from simserve.workload.prompts import PromptIds, prompt_ids, without_misfits
from simserve.workload.sessions import SessionColumns, earliest_times, refuse_overtaken, session_columns
from simserve.workload.timestamps import UNITS, datetimes_ns, elapsed_ns

UNDECLARED = -1  # max_output_tokens of a row that declares none


@dataclass(frozen=True)
class TraceRows:
    """A row per row of the file: times and lengths, its session and what it keeps of that where the trace tells, the
    ids of its prompt where it has any, and what was odd."""

    data: pd.DataFrame
    ids: PromptIds | None
    has_times: bool
    notes: list[str]
    tenants: tuple[str, ...] = ()  # names, by the numbers in the column ``tenant``


def trace_rows(columns: dict[str, Column], dialect: Dialect, where: str, notes: list[str]) -> TraceRows:
    """The columns of one dialect, checked. Raises TraceError naming the first row that breaks a rule."""
    num_rows = len(columns["num_output_tokens"].data)
    ids = prompt_ids(columns, dialect)
    told = session_columns(columns, UNITS.get(dialect.time), notes)
    prompts = _prompts(columns.get("num_prompt_tokens"), dialect, ids, num_rows, notes)
    if "kept" in columns and dialect.appends:
        prompts = prompts + columns["kept"].whole_numbers()
    data: dict[str, Any] = {
        "arrival_ns": _arrivals(columns.get("arrival"), dialect, told, num_rows, notes),
        "num_prompt_tokens": prompts,
        "num_output_tokens": _outputs(columns["num_output_tokens"], dialect, notes),
    }
    declared, priority = columns.get("max_output_tokens"), columns.get("priority")
    data["max_output_tokens"] = declared.whole_numbers(missing=0) if declared else np.zeros(num_rows, np.int64)
    data["max_output_tokens"][data["max_output_tokens"] == 0] = UNDECLARED
    data["priority"] = priority.whole_numbers(low=-(2**31), missing=0) if priority else np.zeros(num_rows, np.int64)
    if told is not None:
        if told.waits.any():
            refuse_overtaken(told.waits, told, data["arrival_ns"], columns.get("wait_before", columns["session"]))
        data |= {"session": told.session, "waits": told.waits}
        if "kept" in columns and ids is None:
            data |= _kept(columns["kept"], told, data, notes)
        elif "kept" in columns:
            notes.append(f"{columns['kept'].name} not used: {columns['content'].name} says what prompts share")
    data |= prefix_columns(columns, prompts, ids is not None, notes)
    owned = owners(columns.get("tenant"), notes)
    if owned is not None:
        data["tenant"] = owned.of
    if "total" in columns:
        total = columns["total"]
        differs = total.numbers() != data["num_prompt_tokens"] + data["num_output_tokens"]
        counted(notes, differs & ~total.is_missing(), f"whose {total.name} is not the sum of the two: the two are used")
    if ids is not None:
        ids = without_misfits(ids, data["num_prompt_tokens"], notes)
    elif dialect.tokens_per_id and dialect.covers_prompt:
        notes.append(f"no {dialect.optional['content']}: nothing is known of what its prompts share")
    has_times, names = "arrival" in columns or "turn" in columns, owned.names if owned else ()
    return TraceRows(pd.DataFrame(data), ids, has_times, notes, names)


def _kept(column: Column, told: SessionColumns, data: dict[str, Any], notes: list[str]) -> dict[str, IntColumn]:
    """How many tokens of the prompt and answer before it in its session a prompt begins with, and who that is."""
    kept = column.whole_numbers(missing=0)
    column.refuse_unless(kept <= data["num_prompt_tokens"], "must be at most the tokens of its prompt")
    refuse_overtaken(kept > 0, told, data["arrival_ns"], column)
    counted(notes, (kept > 0) & (told.before == NOBODY), f"with {column.name} and nobody before: taken as new")
    return {"kept": kept, "before": told.before}


def _arrivals(
    column: Column | None, dialect: Dialect, told: SessionColumns | None, num_rows: int, notes: list[str]
) -> IntColumn:
    if column is None:
        if told is None:
            notes.append(f"no {dialect.columns['arrival']}: its requests have an order, and no times")
            return np.zeros(num_rows, np.int64)
        notes.append(f"no {dialect.optional['arrival']}: every session starts at once")
        return earliest_times(np.zeros(num_rows, np.int64), told)
    if dialect.time == "datetime":
        return datetimes_ns(column)
    unit = UNITS[dialect.time]
    if told is None:
        return elapsed_ns(column, unit)
    return earliest_times(elapsed_ns(column.filled(told.waits & column.is_missing()), unit), told)


def _prompts(
    column: Column | None, dialect: Dialect, ids: PromptIds | None, num_rows: int, notes: list[str]
) -> IntColumn:
    """Prompt lengths; where only the blocks are known, the most that they hold."""
    if column is not None and not dialect.has_gaps:
        return column.whole_numbers()
    name = dialect.columns["num_prompt_tokens"]
    lengths = np.zeros(num_rows, np.int64) if column is None else column.whole_numbers(missing=0)
    unknown = np.ones(num_rows, bool) if column is None else column.is_missing()
    if ids is not None:
        known_blocks = unknown & (ids.counts > 0)
        lengths = np.where(known_blocks, ids.counts * ids.tokens_per_id, lengths)
        counted(notes, known_blocks, f"without {name}: taken as whole blocks of {ids.tokens_per_id:,} tokens")
        unknown = unknown & ~known_blocks
    counted(notes, unknown, f"without {name} and {dialect.optional['content']}")
    return lengths


def _outputs(column: Column, dialect: Dialect, notes: list[str]) -> IntColumn:
    if not dialect.has_gaps:
        return column.whole_numbers()
    counted(notes, column.is_missing(), f"without {dialect.columns['num_output_tokens']}")
    return column.whole_numbers(missing=0)
