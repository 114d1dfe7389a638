"""Time-weighted means of what the engine recorded per span, over any windows and over equal bins.

A span's quantities run linearly between its two ends, so their integral up to any time is a closed form: a bin is the
difference of two of them, however many spans it cuts or lies inside.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from simserve.distributions import FloatColumn
from simserve.records import Records
from simserve.request import IntColumn, LookUp
from simserve.step_time.stretch import NS_PER_S

NUM_BINS = 400
KV_PARTS = ("used", "reserved_unused", "internal", "external")
PREFIX_COUNTS = ("prefix_looked_up_tokens", "prefix_found_tokens", "prefix_evicted_tokens", "prefix_bound_tokens")
TIMELINE_COLUMNS = (
    "begin_s",
    "end_s",
    "batch_size",  # rows that the model computes, finished members of a static batch included; 0 while idle
    "num_running",
    "num_waiting",
    *(f"kv_{part}_share" for part in KV_PARTS),  # of the capacity
    "kv_free_share",  # free and usable by the next request
    "output_tokens_per_s",
    "busy_share",
    *PREFIX_COUNTS,
    "prefix_hit_rate",  # found of looked up; NaN where nothing was
)


class SpanIntegral:
    """Integrals over time of the columns of ``SpanRecords``; outside every span a quantity counts as zero."""

    def __init__(self, columns: Mapping[str, IntColumn]) -> None:
        self.columns = columns
        self._begin = columns["begin_ns"]
        self._duration = (columns["end_ns"] - self._begin).astype(np.float64)

    def means(self, edges_ns: FloatColumn, first: FloatColumn, last: FloatColumn | None = None) -> FloatColumn:
        """Time-weighted mean in each window between neighbouring edges (n + 1 edges, rising, give n means).

        ``first`` and ``last`` are the quantity at the two ends of every span; without ``last`` it is constant.
        """
        widths = np.diff(edges_ns)
        areas = np.diff(self._until(edges_ns, first, last))
        return np.divide(areas, widths, out=np.zeros_like(areas), where=widths > 0)

    def column_means(self, edges_ns: FloatColumn, name: str) -> FloatColumn:
        """Means of a column by its name in ``SpanRecords``, which may or may not have a ``_begin`` and an ``_end``."""
        if name in self.columns:
            return self.means(edges_ns, self._column(name))
        first = self._column(f"{name}_begin")
        return self.means(edges_ns, first, self._column(f"{name}_end") if f"{name}_end" in self.columns else None)

    def rates(self, edges_ns: FloatColumn, name: str) -> FloatColumn:
        """Events per second in each window, for a column that counts a span's events, taken as evenly spread in it."""
        per_ns = np.divide(self._column(name), self._duration, out=np.zeros_like(self._duration), where=self._busy)
        return self.means(edges_ns, per_ns) * NS_PER_S

    def busy_shares(self, edges_ns: FloatColumn) -> FloatColumn:
        """Share of each window in which steps ran."""
        return self.means(edges_ns, (self.columns["num_steps"] > 0).astype(np.float64))

    @property
    def _busy(self) -> np.typing.NDArray[np.bool_]:
        return self._duration > 0

    def _column(self, name: str) -> FloatColumn:
        return self.columns[name].astype(np.float64)

    def _until(self, times_ns: FloatColumn, first: FloatColumn, last: FloatColumn | None) -> FloatColumn:
        """The integral from the beginning up to each time, in units of the quantity × ns."""
        if not len(self._begin):
            return np.zeros(len(times_ns))
        areas = self._areas(first, last)
        np.cumsum(areas, out=areas)
        i = np.maximum(np.searchsorted(self._begin, times_ns, side="right") - 1, 0)
        before = np.where(i > 0, areas[i - 1], 0.0)
        duration, begin = self._duration[i], first[i]
        end = begin if last is None else last[i]
        elapsed = np.clip(times_ns - self._begin[i], 0.0, duration)
        growth = np.divide(end - begin, duration, out=np.zeros_like(duration), where=duration > 0)
        integral: FloatColumn = before + elapsed * (begin + growth * elapsed / 2)
        return integral

    def _areas(self, first: FloatColumn, last: FloatColumn | None) -> FloatColumn:
        """The integral over each span."""
        if last is None:
            return first * self._duration
        areas = first + last
        areas /= 2
        areas *= self._duration
        return areas


def timeline(records: Records, num_bins: int = NUM_BINS) -> pd.DataFrame:
    """The whole run cut into ``num_bins`` bins of equal width; columns are ``TIMELINE_COLUMNS``.

    Times are seconds from the first arrival; columns are time-weighted means in their bin, cache parts as shares of the
    capacity (all 0 without a cache). Those of the prefix cache count tokens of the look-ups of first admissions in the
    bin (``request.LookUp``). A run in which nothing took time gives no rows.
    """
    spans = SpanIntegral(records.spans.columns())
    if not len(spans.columns["begin_ns"]):
        return pd.DataFrame({name: np.zeros(0) for name in TIMELINE_COLUMNS})
    edges_ns = np.linspace(spans.columns["begin_ns"][0], spans.columns["end_ns"][-1], num_bins + 1)
    capacity = max(1, records.capacity_tokens)
    kv = [spans.column_means(edges_ns, f"kv_{part}") / capacity for part in KV_PARTS]
    columns = (
        edges_ns[:-1] / NS_PER_S,
        edges_ns[1:] / NS_PER_S,
        spans.column_means(edges_ns, "num_seqs"),
        spans.column_means(edges_ns, "num_running"),
        spans.column_means(edges_ns, "num_waiting"),
        *kv,
        np.maximum(0.0, float(records.capacity_tokens > 0) - np.sum(kv, axis=0)),
        spans.rates(edges_ns, "num_emitted_tokens"),
        spans.busy_shares(edges_ns),
        *_prefix(records, edges_ns),
    )
    return pd.DataFrame(dict(zip(TIMELINE_COLUMNS, columns, strict=True)))


def _prefix(records: Records, edges_ns: FloatColumn) -> list[FloatColumn]:
    """Tokens looked up, found, evicted and at most to be found in each bin, and the rate of what was found."""
    look_ups = records.look_ups.columns()
    counts = [np.histogram(look_ups["time_ns"], edges_ns, weights=look_ups[name])[0] for name in LookUp._fields]
    looked_up, found = counts[:2]
    return [*counts, np.divide(found, looked_up, out=np.full(len(found), np.nan), where=looked_up > 0)]
