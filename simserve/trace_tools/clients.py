"""Who sends the requests of a trace, as one or several columns of its file tell."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from simserve.errors import TraceError
from simserve.request import IntColumn
from simserve.scenario.messages import did_you_mean, printable
from simserve.workload.columns import Column
from simserve.workload.dialects import DIALECTS, fold
from simserve.workload.trace import Trace
from simserve.workload.trace_file import read_columns

MAX_CLIENTS = 1000  # tenants of a scenario
FEW = 50  # different values of a column that may name clients …
REQUESTS_EACH = 20  # … and for each of them so many requests
OTHERS = "others"
NOBODY = "(none)"
LONGEST_NAME = 60
_OUTCOMES = frozenset(
    {"variant", "requestid", "status", "rejectreason"}
)  # of a run's requests.parquet, and its figures


class Clients(NamedTuple):
    """Request i of a trace is of ``names[of[i]]``; names by how many requests they have, the others of them last."""

    names: tuple[str, ...]
    of: IntColumn


def clients_of(path: Path, trace: Trace, by: Sequence[str], most: int) -> Clients:
    """Whose each request of a trace is, by the values of the columns ``by`` of its file (case, spaces and underscores
    folded). The ``most`` with the most requests have their own name; where there are more, all others share one.
    Raises TraceError for a column that the file lacks."""
    frame = read_columns(path)
    columns = [_column(frame, name, path.name) for name in by]
    assert trace.row is not None
    cells = [Column(path.name, column, frame[column]).text().iloc[trace.row].tolist() for column in columns]
    labels = pd.Series([", ".join(value or NOBODY for value in values) for values in zip(*cells, strict=True)])
    counts = labels.value_counts()
    ordered = sorted(counts.index, key=lambda label: (-int(counts[label]), label))
    place = {label: min(i, most) for i, label in enumerate(ordered)}
    names = _names([*ordered[:most], *([OTHERS] if len(ordered) > most else [])])
    return Clients(names, labels.map(place).to_numpy(np.int64))


def may_tell_clients(path: Path, trace: Trace) -> list[tuple[str, int]]:
    """Columns of the file that are none of its requests' times and lengths, nor what a run of ours made of them, and
    have 2 to 50 different values, 20 requests to each or more; and how many."""
    frame = read_columns(path)
    dialect = DIALECTS[trace.format_name]
    words = {**dialect.columns, **dialect.optional, "total": dialect.total}
    used = {fold(name) for word, name in words.items() if word not in ("session", "priority", "tenant")}
    assert trace.row is not None
    found = []
    for name in (str(name) for name in frame.columns if fold(str(name)) not in used):
        if trace.format_name == "simserve" and _is_outcome(name):
            continue
        values = frame[name].iloc[trace.row]
        is_plain = values.map(type).isin((str, int, bool)).all()
        if is_plain and 2 <= (num := values.nunique()) <= min(FEW, len(trace) // REQUESTS_EACH):
            found.append((name, num))
    return found


def _is_outcome(name: str) -> bool:
    return fold(name) in _OUTCOMES or name.startswith("num_") or name.endswith(("_s", "_tokens"))


def _column(frame: pd.DataFrame, name: str, where: str) -> str:
    found = [str(column) for column in frame.columns]
    if (match := next((column for column in found if fold(column) == fold(name)), None)) is None:
        raise TraceError(
            printable(f"--by: must be a column of {where} (got {name[:40]!r}; {did_you_mean(name, found)})")
        )
    return match


def _names(labels: Sequence[str]) -> tuple[str, ...]:
    """Names that a scenario takes: printable, short, and no two alike."""
    names: list[str] = []
    for label in labels:
        short = printable(label)[:LONGEST_NAME].strip() or NOBODY
        tried = (f"{short} ({i})" if i else short for i in itertools.count())
        names.append(next(name for name in tried if name not in names))
    return tuple(names)
