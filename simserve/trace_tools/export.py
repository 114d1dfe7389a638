"""A trace to a file of our own format (csv, jsonl or parquet, told by the name), which reads back to the same requests.

Columns that no row needs are left out. Times are seconds from the first arrival with all nine decimals that they have:
text in csv and jsonl; in parquet a float where it holds every nanosecond (up to 11 days), a decimal beyond.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simserve.errors import OutputError, TraceError
from simserve.request import Content, IntColumn
from simserve.scenario.messages import printable
from simserve.workload.prefix_columns import told_of_prefixes
from simserve.workload.sessions import NO_SESSION
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import UNDECLARED, Trace

FORMS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")
WRITTEN = frozenset(
    {
        *{"arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority", "tenants"},
        *{"session", "wait_ns", "kept", "content"},
    }
)  # fields of a Trace that a file holds; the others say how it was read
TimeCells = Callable[[IntColumn], list[Any]]
_FLOAT_BELOW_NS = 10**15  # seconds below this are floats that round to the nanosecond that they stand for


def form_of(path: Path) -> str:
    """The form that a file's name asks for. Raises OutputError for a name that asks for none of ``FORMS``."""
    name = path.name.lower()
    for form in FORMS:
        if name.endswith(form) and len(name) > len(form):
            return form
    raise OutputError(printable(f"{path}: must end in {', '.join(FORMS)}, which say how to write it"))


def require_writable(path: Path, source: Path, overwrite: bool) -> None:
    """Pass when a file may be written there. Raises OutputError, one sentence, before anything is read or written."""
    form_of(path)
    if path.is_dir():
        raise OutputError(printable(f"{path}: must be a file to write (got a folder)"))
    if not path.parent.is_dir():
        raise OutputError(printable(f"{path}: its folder must exist (got {path.parent})"))
    if path.exists():
        if source.exists() and path.samefile(source):
            raise OutputError(printable(f"{path}: must not be the trace that is read; name another file"))
        if not overwrite:
            raise OutputError(printable(f"{path}: exists already; name another file, or give --overwrite"))


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace in our own format, whole or not at all; the same trace gives the same bytes.

    Raises OutputError where it cannot be written, TraceError for a trace without times, which our format needs.
    """
    if not trace.has_times:
        raise TraceError(
            printable(f"{path}: cannot hold a trace without times; replay the file as it is, with workload.concurrency")
        )
    form = form_of(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".partial")
    except (OSError, ValueError) as error:
        raise OutputError(printable(f"{path}: cannot be written ({_reason(error)})")) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            _write(trace, form, file)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(printable(f"{path}: cannot be written ({_reason(error)})")) from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).lower()


def _write(trace: Trace, form: str, file: IO[bytes]) -> None:
    if form == ".parquet":
        pq.write_table(_table(trace), file)
        return
    stream = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if form.endswith(".gz") else file
    with io.TextIOWrapper(cast(IO[bytes], stream), encoding="utf-8", newline="") as text:
        if form.startswith(".csv"):
            _frame(trace, seconds_text, _spaced).to_csv(text, index=False, lineterminator="\n")
        else:
            text.writelines(_json_lines(trace))


def seconds_text(times_ns: IntColumn) -> list[str]:
    """Seconds with all the decimals that the nanoseconds have, and no more: ``0``, ``0.5``, ``12.000000001``; nothing
    for a negative one, which stands for none."""
    return [
        "" if ns < 0 else f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}".rstrip("0") if ns % NS_PER_S else str(ns // NS_PER_S)
        for ns in times_ns.tolist()
    ]


def _frame(trace: Trace, time_cells: TimeCells, ids_cell: Callable[[IntColumn], object]) -> pd.DataFrame:
    """The columns of a file; ``time_cells`` writes a column of nanoseconds, ``ids_cell`` one prompt's list of ids."""
    columns: dict[str, Any] = {
        "arrival_s": time_cells(trace.arrival_ns),
        "num_prompt_tokens": trace.num_prompt_tokens,
        "num_output_tokens": trace.num_output_tokens,
    }
    if (trace.max_output_tokens != UNDECLARED).any():
        columns["max_output_tokens"] = _known(trace.max_output_tokens, UNDECLARED)
    if trace.priority.any():
        columns["priority"] = trace.priority
    if trace.tenants is not None:
        names = [tenant.name for tenant in trace.tenants.each]
        columns["tenant"] = pd.Categorical.from_codes(trace.tenants.of, categories=pd.Index(names))
    if trace.session is not None:
        columns["session_id"] = _known(trace.session, NO_SESSION)
        if trace.wait_ns is not None:
            columns["wait_s"] = time_cells(trace.wait_ns)
    if trace.kept is not None:
        columns["kept_tokens"] = trace.kept
    columns |= told_of_prefixes(trace.content, trace.num_prompt_tokens, keeps_told=trace.kept is not None)
    if trace.kept is None and isinstance(trace.content, Content):
        ids, offsets = trace.content.ids, trace.content.offsets.tolist()
        lists = [ids_cell(ids[begin:end]) for begin, end in itertools.pairwise(offsets)]
        columns["prefix_hashes"] = pd.Series(lists, dtype=object)
        columns["prefix_block_tokens"] = trace.content.block_tokens
    return pd.DataFrame(columns)


def _known(column: IntColumn, unknown: int) -> object:
    """A column with empty cells where it says nothing."""
    cells = pd.array(column, dtype="Int64")
    cells[column == unknown] = pd.NA
    return cells


def _spaced(ids: IntColumn) -> str:
    return " ".join(map(str, ids.tolist()))


def _json_lines(trace: Trace) -> Iterator[str]:
    """A line per request; keys without a value are left out. Times are numbers with the digits of ``seconds_text``."""
    frame = _frame(trace, seconds_text, lambda ids: json.dumps(ids.tolist()))
    if "tenant" in frame:
        frame["tenant"] = [json.dumps(name) for name in frame["tenant"]]
    keys = [f"{json.dumps(name)}: " for name in frame.columns]
    columns = [["" if cell is pd.NA else str(cell) for cell in frame[name].astype(object)] for name in frame.columns]
    for cells in zip(*columns, strict=True):
        yield "{" + ", ".join(key + cell for key, cell in zip(keys, cells, strict=True) if cell) + "}\n"


def _table(trace: Trace) -> pa.Table:
    table = pa.Table.from_pandas(_frame(trace, np.ndarray.tolist, np.ndarray.tolist), preserve_index=False)
    times = {"arrival_s": trace.arrival_ns, "wait_s": trace.wait_ns}
    for place, name in enumerate(table.column_names):
        if (column := times.get(name)) is not None:
            table = table.set_column(place, name, _seconds(column))
    return table.replace_schema_metadata(None)


def _seconds(times_ns: IntColumn) -> pa.Array:
    """Seconds in parquet; null for a negative one, which stands for none."""
    if int(times_ns.max()) < _FLOAT_BELOW_NS:
        return pa.array(times_ns / NS_PER_S, mask=times_ns < 0)
    return pa.array([text or None for text in seconds_text(times_ns)], pa.string()).cast(pa.decimal128(20, 9))
