"""A file of one row per request with times of arrival, first token and last token: csv, jsonl or parquet.

Columns go by their names, a unit at the end (``_s``, ``_ms``, ``_us``, ``_ns``; without one, seconds), or hold dates.
Times to the first and last token may be given from the arrival on (``ttft``, ``e2e`` or ``latency``). Lengths may be
missing: they are then the scenario's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from simserve.distributions import FloatColumn
from simserve.errors import RunError
from simserve.recorded.run import RecordedRun, Stamps, recorded_run
from simserve.request import IntColumn
from simserve.scenario.messages import printable
from simserve.workload.columns import Column
from simserve.workload.dialects import fold
from simserve.workload.timestamps import NS_PER_S, datetimes_ns
from simserve.workload.trace_file import read_columns

FORMAT = "requests"
_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ts": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NAME = re.compile(rf"(.+?)[_ ](?:{'|'.join(_UNITS)})", re.IGNORECASE)
_ROLES = {
    "arrival": "arrival queued arrival_time arrived_at queued_at sent start start_time request_start_time submitted",
    "first_token": "first_token first_token_time first_token_at",
    "last_token": "last_token last_token_time last_token_at",
    "end": "end end_time finished finished_at completed completed_at request_end_time",
    "scheduled": "first_scheduled scheduled first_scheduled_time scheduled_time",
    "ttft": "ttft time_to_first_token",
    "e2e": "e2e latency e2e_latency request_latency",
    "prompt": "num_prompt_tokens prompt_tokens input_tokens input_toks input_length input_len prompt_len",
    "output": "num_output_tokens output_tokens output_toks output_length output_len completion_tokens generated_tokens",
    "status": "status",
    "preemptions": "num_preemptions preemptions",
    "variant": "variant",
}
_NEEDED = {"arrival": ("arrival",), "first token": ("first_token", "ttft"), "last token": ("last_token", "end", "e2e")}
_DONE = ("finished", "success", "successful", "ok", "completed", "true", "200")
_DATE = r"\s*\d{4}-\d\d-\d\d[ Tt]"


def read(path: Path) -> RecordedRun:
    """The run of a file. Raises InputError naming the column that is missing or the first row that is odd."""
    return run_of(read_columns(path), path.name, FORMAT)


def run_of(frame: pd.DataFrame, where: str, form: str) -> RecordedRun:
    """The run of a table with a row per request."""
    found = _columns(frame, where)
    if "variant" in found and found["variant"][0].text().nunique() > 1:
        raise RunError(printable(f"{where}: must hold one variant (got several); keep the rows of one of them"))
    arrival = _seconds(found["arrival"], may_lack=False)
    first, last, end = (
        _since(found, arrival, *roles) for roles in (("first_token", "ttft"), ("last_token",), ("end",))
    )
    if end is None:
        end = _since(found, arrival, "e2e")
    last = end if last is None else last
    assert first is not None and last is not None, "needed, and found"
    prompts, outputs = (_lengths(found, role) for role in ("prompt", "output"))
    done = _finished(found, len(frame))
    if outputs is not None:
        done = done & (outputs > 0)
    stamps = Stamps(
        arrival_s=arrival,
        first_token_s=first,
        last_token_s=np.where(done, last, np.nan),
        num_prompt_tokens=prompts,
        num_output_tokens=outputs,
        first_scheduled_s=_seconds(found["scheduled"]) if "scheduled" in found else None,
        end_s=end,
    )
    preempted = int(found["preemptions"][0].whole_numbers(missing=0).sum()) if "preemptions" in found else None
    return recorded_run(where, form, stamps, num_preemptions=preempted)


def _columns(frame: pd.DataFrame, where: str) -> dict[str, tuple[Column, float]]:
    """Role -> the column that plays it, and its unit in seconds; of several the first named in ``_ROLES``."""
    by_fold: dict[str, tuple[Column, float]] = {}
    for name in frame.columns:
        parts = _NAME.fullmatch(name.strip())
        stem = parts[1] if parts else name
        unit = _UNITS[re.split("[_ ]", name.strip())[-1].lower()] if parts else 1.0
        by_fold.setdefault(fold(stem), (Column(where, name, frame[name]), unit))
    found = {}
    for role, names in _ROLES.items():
        known = [by_fold[fold(name)] for name in names.split() if fold(name) in by_fold]
        if known:
            found[role] = known[0]
    missing = [what for what, roles in _NEEDED.items() if not any(role in found for role in roles)]
    if missing:
        raise RunError(printable(f"{where}: {_lacks(missing, frame.columns)}"))
    if frame.empty:
        raise RunError(printable(f"{where}: must have a row per request (it has none)"))
    return found


def _lacks(missing: list[str], columns: Iterable[object]) -> str:
    names = ", ".join(str(name)[:40] for name in list(columns)[:12])
    known = ("arrival_s", "first_token_s or ttft_s", "last_token_s or e2e_s")
    return f"must tell each request's {' and '.join(missing)} in a column such as {', '.join(known)} (found: {names})"


def _seconds(found: tuple[Column, float], may_lack: bool = True) -> FloatColumn:
    """Seconds; NaN for empty cells, which ``may_lack`` allows. Dates are seconds since 1970."""
    column, unit = found
    empty = column.is_missing()
    if not may_lack:
        column.refuse_unless(~empty, "must be a time")
    if _holds_dates(column, empty):
        seconds = np.full(len(empty), np.nan)
        kept = Column(column.where, column.name, column.data[~empty])
        seconds[~empty] = datetimes_ns(kept) / NS_PER_S
        return seconds
    numbers = np.asarray(column.numbers() * unit, np.float64)
    column.refuse_unless(empty | (np.abs(numbers) < 9e9), "must be a time: a number of seconds, or a date")
    return np.where(empty, np.nan, numbers)


def _holds_dates(column: Column, empty: npt.NDArray[np.bool_]) -> bool:
    if pd.api.types.is_datetime64_any_dtype(column.data.dtype):
        return True
    return bool(not empty.all() and re.match(_DATE, str(column.text()[~empty].iloc[0])))


def _since(found: dict[str, tuple[Column, float]], arrival: FloatColumn, *roles: str) -> FloatColumn | None:
    """The column of the first role that there is, as a moment; ``ttft`` and ``e2e`` count from the arrival."""
    role = next((role for role in roles if role in found), None)
    if role is None:
        return None
    seconds = _seconds(found[role])
    return arrival + seconds if role in ("ttft", "e2e") else seconds


def _lengths(found: dict[str, tuple[Column, float]], role: str) -> IntColumn | None:
    return found[role][0].whole_numbers(missing=0) if role in found else None


def _finished(found: dict[str, tuple[Column, float]], num_rows: int) -> npt.NDArray[np.bool_]:
    if "status" not in found:
        return np.ones(num_rows, bool)
    return np.asarray(found["status"][0].text().str.lower().isin(_DONE).to_numpy(bool))
