"""A trace to columns of requests: times from the earliest, stable order, every odd row counted in a note."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from simserve.request import Content, IntColumn, Ranges, Tenants
from simserve.scenario.messages import printable
from simserve.workload.columns import Column
from simserve.workload.dialects import choose_dialect, match_columns
from simserve.workload.kept import kept_of_those_left, session_content
from simserve.workload.odd_rows import counted
from simserve.workload.owners import in_order
from simserve.workload.prefix_columns import prefixes_of
from simserve.workload.refusal import refusal
from simserve.workload.sessions import NO_SESSION, OWN_TIME, before_in_session, waits_of
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace_file import read_columns
from simserve.workload.trace_rows import UNDECLARED, TraceRows, trace_rows

MAX_SPAN_S = 10**9  # 32 years

__all__ = ["MAX_SPAN_S", "NO_SESSION", "OWN_TIME", "UNDECLARED", "Trace", "read_trace"]


@dataclass(frozen=True)
class Trace:
    """Columns of equal length, in order of arrival: nanoseconds from the first arrival, tokens, and the notes."""

    arrival_ns: IntColumn
    num_prompt_tokens: IntColumn
    num_output_tokens: IntColumn
    max_output_tokens: IntColumn  # UNDECLARED where the trace does not say
    priority: IntColumn
    notes: tuple[str, ...]
    content: Content | Ranges | None = None
    session: IntColumn | None = None  # numbered from 0 by first arrival, NO_SESSION where a request has none
    wait_ns: IntColumn | None = None  # after the answer before it in its session; OWN_TIME: it comes at its own time
    kept: IntColumn | None = None  # tokens of the prompt and answer before it in its session with which it begins
    tenants: Tenants | None = None  # whose the requests are, by first arrival
    has_times: bool = True  # false: every arrival is 0, in the file's order, and an open loop cannot replay it
    format_name: str = ""  # the dialect that it was read as
    num_rows: int = 0  # of the file, those that are left out as well
    row: IntColumn | None = None  # which row of the file each request is, from 0

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


@lru_cache(maxsize=4)
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
    _refuse_variants(frame, where)
    del frame
    rows = trace_rows(columns, dialect, where, [f"columns not used: {ignored}"] if ignored else [])
    return replace(_in_order(rows, where), format_name=dialect.name, num_rows=len(rows.data))


def _refuse_variants(frame: pd.DataFrame, where: str) -> None:
    """A run's requests.parquet is a trace of ours where it is of one variant; several would be all requests twice."""
    if "variant" in frame and "request_id" in frame and frame["variant"].nunique() > 1:
        names = ", ".join(map(str, frame["variant"].unique()[:4]))
        raise refusal(where, f"must have the requests of one run (got the variants {names}); keep the rows of one")


def _in_order(rows: TraceRows, where: str) -> Trace:
    """Drop what is no request, subtract the earliest time, sort stably."""
    data, notes = rows.data, rows.notes
    without_output = (data["num_output_tokens"] == 0).to_numpy()
    without_prompt = (data["num_prompt_tokens"] == 0).to_numpy() & ~without_output
    counted(notes, without_output, "without output tokens (failed requests) left out")
    counted(notes, without_prompt, "without prompt tokens left out")
    left = _left(data, ~(without_output | without_prompt))
    if left.empty:
        raise refusal(where, f"has no request left: each of its {len(data):,} rows lacks output or prompt tokens")
    times = left["arrival_ns"].to_numpy()
    _refuse_decades(times, left.index.to_numpy(), where)
    ordered = left.iloc[np.argsort(times, kind="stable")]
    content = _content(rows, ordered)
    prompts = rows.ids.alike(ordered.index.to_numpy()) if rows.ids else 0
    counted(notes, ordered.assign(prompts=prompts).duplicated().to_numpy(), "repeating an earlier one kept")
    counted(notes, np.diff(times, prepend=times[0]) < 0, "earlier than the row before: sorted by arrival")
    arrays: dict[str, Any] = {str(name): ordered[name].to_numpy().copy() for name in ordered.columns}
    arrays = {name: column for name, column in arrays.items() if name not in ("prefix", "prefix_tokens")}
    arrays |= _sessions(arrays)
    tenants = in_order(arrays.pop("tenant"), rows.tenants) if "tenant" in arrays else None
    arrays["arrival_ns"] -= arrays["arrival_ns"][0]
    arrays["row"] = ordered.index.to_numpy(np.int64, copy=True)
    told = [] if content is None else [column for column in vars(content).values() if isinstance(column, np.ndarray)]
    for column in (*arrays.values(), *told):
        column.setflags(write=False)
    said = tuple(printable(f"{where}: {note}") for note in notes)
    return Trace(**arrays, notes=said, content=content, tenants=tenants, has_times=rows.has_times)


def _left(data: pd.DataFrame, is_left: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """The rows that are requests, with what each keeps of those before it among them."""
    if "kept" not in data:
        return data[is_left]
    kept = kept_of_those_left(data["kept"].to_numpy(), data["before"].to_numpy(), is_left)
    return data.assign(kept=kept).drop(columns="before")[is_left]


def _sessions(arrays: dict[str, Any]) -> dict[str, IntColumn]:
    """``session`` and ``wait_ns`` as far as there are any, for the columns of the same names, which are taken out."""
    session, waits = arrays.pop("session", None), arrays.pop("waits", None)
    if session is None or (session == NO_SESSION).all():
        return {}
    wait_ns = waits_of(arrays["arrival_ns"], session, waits)
    named = session != NO_SESSION
    session[named] = pd.factorize(session[named])[0]
    return {"session": session} if wait_ns is None else {"session": session, "wait_ns": wait_ns}


def _refuse_decades(times: IntColumn, rows: IntColumn, where: str) -> None:
    if int(times.max()) - int(times.min()) <= MAX_SPAN_S * NS_PER_S:
        return
    first, last = int(times.argmin()), int(times.argmax())
    raise refusal(
        where,
        f"must span at most {MAX_SPAN_S:,} seconds, but rows {rows[first] + 1:,} and {rows[last] + 1:,} are further "
        "apart; look for a wrong date",
    )


def _content(rows: TraceRows, ordered: pd.DataFrame) -> Content | Ranges | None:
    """What the prompts hold, in order of arrival; where turns keep what was before them, also what the answers do."""
    prefixes = prefixes_of(ordered)
    if "kept" in ordered:
        names = ("kept", "num_prompt_tokens", "num_output_tokens")
        kept, prompts, outputs = (ordered[name].to_numpy() for name in names)
        return session_content(before_in_session(ordered["session"].to_numpy()), kept, prompts, outputs, prefixes)
    if rows.ids is None:
        return prefixes
    nodes = rows.ids.nodes(ordered.index.to_numpy())
    if rows.ids.tokens_per_id > 1 and len(nodes.ids):
        rows.notes.append(
            f"{100 * nodes.seen_before:.1f} % of {len(nodes.ids):,} blocks of up to {rows.ids.block_tokens:,} tokens "
            "repeat an earlier prompt's, partial last ones included"
        )
    return rows.ids.content(nodes, ordered["num_prompt_tokens"].to_numpy())
