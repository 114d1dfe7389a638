"""Arrival times of a trace to integer nanoseconds, exact: no time passes through a float that cannot hold it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pandas as pd

from simserve.request import IntColumn
from simserve.workload.columns import Column

NS_PER_S = 10**9
MAX_ABSOLUTE_S = 9e9  # the year 2255 since 1970: beyond it int64 nanoseconds end, and seconds were never meant
_EXACT_BELOW_NS = 1e15  # below, a float is within half a nanosecond of the nine decimals it was written with
_DATE_SHAPE = r"\s*\d{4}-\d\d-\d\d[ Tt]\d\d:\d\d"


def datetimes_ns(column: Column) -> IntColumn:
    """Dates with a time (``2023-11-16 18:17:03.9799600``, ``…+00:00``, ``…Z``, with or without a fraction, mixed in one
    column) to nanoseconds since 1970; a time without a zone is UTC. Raises TraceError naming the first odd row."""
    rule = "must be a date with a time, such as 2023-11-16 18:17:03.9799600, from 1678 to 2262"
    data = column.data
    if pd.api.types.is_datetime64_any_dtype(data.dtype):
        times = pd.to_datetime(data, utc=True)
    else:
        text = column.text()
        column.refuse_unless(text.str.match(_DATE_SHAPE).to_numpy(bool), rule)
        times = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    in_range = times.between(pd.Timestamp.min.tz_localize("UTC"), pd.Timestamp.max.tz_localize("UTC"))
    column.refuse_unless(in_range.to_numpy(bool), rule)
    return np.asarray(times.dt.as_unit("ns").astype(np.int64), np.int64)


@dataclass(frozen=True)
class Unit:
    """A unit of times since some moment."""

    name: str
    ns: int
    hint: str = ""

    @property
    def limit(self) -> int:
        """Times must stay below."""
        return int(MAX_ABSOLUTE_S) * NS_PER_S // self.ns


UNITS = {
    "seconds": Unit("seconds", NS_PER_S, " (milliseconds are not seconds)"),
    "milliseconds": Unit("milliseconds", 10**6),
    "nanoseconds": Unit("nanoseconds", 1),
}


def elapsed_ns(column: Column, unit: Unit) -> IntColumn:
    """Times in a unit, whole or with a fraction, to nanoseconds (rounded to the nearest). Raises TraceError naming the
    first row that is not such a number within 285 years."""
    times = column.numbers()
    fits = np.abs(times) < unit.limit  # false for NaN
    column.refuse_unless(fits, f"must be a number of {unit.name}, below {unit.limit:,}{unit.hint}")
    kind = column.data.dtype.kind if isinstance(column.data.dtype, np.dtype) else "O"
    if kind in "iu":
        return column.data.to_numpy().astype(np.int64) * unit.ns
    latest = float(np.abs(times).max(initial=0.0))
    if kind != "f" and latest * unit.ns >= _EXACT_BELOW_NS and not (latest < 2**53 and _are_whole(column)):
        return _decimals_ns(column, unit, fits)
    whole = np.floor(times)
    return whole.astype(np.int64) * unit.ns + np.rint((times - whole) * unit.ns).astype(np.int64)


def _are_whole(column: Column) -> bool:
    """Whether all times are written as whole numbers, ``.0`` allowed: a float holds those exactly below 2^53."""
    return bool(column.text().str.fullmatch(r"[+-]?[0-9]+(?:\.0*)?").all())


def _decimals_ns(column: Column, unit: Unit, fits: npt.NDArray[np.bool_]) -> IntColumn:
    """As ``elapsed_ns``, digit by digit: nanoseconds since 1970 have more digits than a float holds."""
    try:
        return np.array([int((Decimal(text) * unit.ns).to_integral_value()) for text in column.text()], np.int64)
    except (InvalidOperation, OverflowError, ValueError):
        column.refuse_unless(np.zeros_like(fits), f"must be a number of {unit.name}")
        raise
