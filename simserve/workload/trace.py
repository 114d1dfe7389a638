"""A trace to columns of requests: times from the earliest, stable order, every odd row counted in a note."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from simserve.request import IntColumn
from simserve.scenario.messages import printable
from simserve.workload.columns import Column
from simserve.workload.dialects import Dialect, choose_dialect, match_columns
from simserve.workload.refusal import refusal
from simserve.workload.timestamps import NS_PER_S, datetimes_ns, seconds_ns
from simserve.workload.trace_file import read_columns

UNDECLARED = -1  # max_output_tokens of a row that declares none
MAX_SPAN_S = 10**9  # 32 years


@dataclass(frozen=True)
class Trace:
    """Columns of equal length, in order of arrival: nanoseconds from the first arrival, tokens, and the notes."""

    arrival_ns: IntColumn
    num_prompt_tokens: IntColumn
    num_output_tokens: IntColumn
    max_output_tokens: IntColumn  # UNDECLARED where the trace does not say
    priority: IntColumn
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_ns)


def read_trace(path: Path, format_name: str = "auto") -> Trace:
    """Read a trace in one of the formats of ``dialects``; ``auto`` tells it from the columns.

    Rows without output (failed requests in the public traces) or without prompt are left out and counted; duplicates
    are kept and counted. Raises TraceError, one sentence: no such file, a missing column, a length or time that is not
    a number, negative or huge (the row is named), or no request at all. The same object comes back while the file
    stays as it is; its columns cannot be written.
    """
    return _read(path, format_name, _stamp(path))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=2)
def _read(path: Path, format_name: str, _unused_stamp: tuple[int, int] | None) -> Trace:
    """Studies replay the same trace thousands of times; the stamp changes when the file does."""
    frame, where = read_columns(path), path.name
    found = [str(name) for name in frame.columns]
    dialect = choose_dialect(found, format_name, where)
    names = match_columns(found, dialect, where)
    if frame.empty:
        raise refusal(where, "has a header and no rows; a trace needs at least one request")
    columns = {word: Column(where, name, frame[name]) for word, name in names.items()}
    ignored = ", ".join(name[:40] for name in found if name not in names.values())
    return _in_order(_parsed(columns, dialect), where, [f"columns not used: {ignored}"] if ignored else [])


def _parsed(columns: dict[str, Column], dialect: Dialect) -> pd.DataFrame:
    """The columns as integers, in the file's order."""
    arrival = datetimes_ns if dialect.time == "datetime" else seconds_ns
    data = {
        "arrival_ns": arrival(columns["arrival"]),
        "num_prompt_tokens": columns["num_prompt_tokens"].whole_numbers(),
        "num_output_tokens": columns["num_output_tokens"].whole_numbers(),
    }
    num_rows = len(data["arrival_ns"])
    declared, priority = columns.get("max_output_tokens"), columns.get("priority")
    data["max_output_tokens"] = declared.whole_numbers(missing=0) if declared else np.zeros(num_rows, np.int64)
    data["max_output_tokens"][data["max_output_tokens"] == 0] = UNDECLARED
    data["priority"] = priority.whole_numbers(low=-(2**31), missing=0) if priority else np.zeros(num_rows, np.int64)
    return pd.DataFrame(data)


def _in_order(data: pd.DataFrame, where: str, notes: list[str]) -> Trace:
    """Drop what is no request, subtract the earliest time, sort stably."""
    without_output = (data["num_output_tokens"] == 0).to_numpy()
    without_prompt = (data["num_prompt_tokens"] == 0).to_numpy() & ~without_output
    _note(notes, without_output, "without output tokens (failed requests) left out")
    _note(notes, without_prompt, "without prompt tokens left out")
    kept = data[~(without_output | without_prompt)]
    if kept.empty:
        raise refusal(where, f"has no request left: each of its {len(data):,} rows lacks output or prompt tokens")
    _note(notes, kept.duplicated().to_numpy(), "repeating an earlier one kept")
    times = kept["arrival_ns"].to_numpy()
    if int(times.max()) - int(times.min()) > MAX_SPAN_S * NS_PER_S:
        first, last = int(times.argmin()), int(times.argmax())
        raise refusal(
            where,
            f"must span at most {MAX_SPAN_S:,} seconds, but rows {kept.index[first] + 1:,} and "
            f"{kept.index[last] + 1:,} are further apart; look for a wrong date",
        )
    _note(notes, np.diff(times, prepend=times[0]) < 0, "earlier than the row before: sorted by arrival")
    order = np.argsort(times, kind="stable")
    ordered = {str(name): kept[name].to_numpy()[order] for name in kept.columns}
    ordered["arrival_ns"] = ordered["arrival_ns"] - ordered["arrival_ns"][0]
    for column in ordered.values():
        column.setflags(write=False)
    return Trace(**ordered, notes=tuple(printable(f"{where}: {note}") for note in notes))


def _note(notes: list[str], rows: npt.NDArray[np.bool_], what: str) -> None:
    num_rows = int(rows.sum())
    if num_rows:
        notes.append(f"{num_rows:,} {'row' if num_rows == 1 else 'rows'} {what}")
