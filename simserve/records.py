"""What a run leaves behind, in columns. Formulas are in ``metrics``; this module only stores.

Times are integer nanoseconds from the first arrival, -1 where a thing never happened.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn, LookUp, RequestTable

NEVER = -1
# RequestRecords.status, indexes of RequestRecords.STATUSES
WAITING, RUNNING, FINISHED, REJECTED, CANCELLED, TIMED_OUT, BACKING_OFF = range(7)
ITL_BINS_PER_DECADE = 256  # 10 ** (1 / 256) = 1.009: every bin is less than 1 % wide
ITL_FLOOR_S = 1e-7
_NUM_ITL_BINS = 12 * ITL_BINS_PER_DECADE
_ITL_SCALE = ITL_BINS_PER_DECADE / math.log(10)


def itl_bin(gap_s: float) -> int:
    """Index of the log-spaced bin that holds a gap; gaps under 0.1 µs fall in the first, over 10⁵ s in the last."""
    if gap_s <= ITL_FLOOR_S:
        return 0
    return min(_NUM_ITL_BINS - 1, int(_ITL_SCALE * math.log(gap_s / ITL_FLOOR_S)))


def itl_bin_edges_s() -> npt.NDArray[np.float64]:
    """Edges of the ITL bins, ``num_bins + 1`` of them, seconds."""
    return ITL_FLOOR_S * np.exp(np.arange(_NUM_ITL_BINS + 1) / _ITL_SCALE)


@dataclass
class RequestRecords:
    """One row per request. ``status`` indexes ``STATUSES``; ``reject_reason`` is sparse.

    A request whose client tried again has one row all the same: ``arrival_ns`` is its first attempt's, ``end_ns`` when
    it was over for the client, and what lies between (first scheduled, tokens, preemptions) is the last attempt's.
    """

    STATUSES = ("waiting", "running", "finished", "rejected", "cancelled", "timed_out", "backing_off")
    TIMES = ("first_scheduled_ns", "first_token_ns", "last_token_ns", "end_ns")
    COUNTS = (
        "num_emitted_tokens",
        "num_preemptions",
        "num_recomputed_tokens",
        "num_attempts",
        "away_ns",
        "num_computed_tokens",
        "num_abandoned_tokens",
        "num_prefix_hit_tokens",
    )

    table: RequestTable
    arrival_ns: IntColumn = field(init=False)  # first attempt
    status: npt.NDArray[np.int8] = field(init=False)
    first_scheduled_ns: IntColumn = field(init=False)
    first_token_ns: IntColumn = field(init=False)
    last_token_ns: IntColumn = field(init=False)  # computed
    end_ns: IntColumn = field(init=False)  # delivered: the end of the batch under static batching; rejection time
    num_emitted_tokens: IntColumn = field(init=False)
    num_preemptions: IntColumn = field(init=False)
    num_recomputed_tokens: IntColumn = field(init=False)  # thrown away by preemptions, or never kept (no cache)
    num_attempts: IntColumn = field(init=False)
    away_ns: IntColumn = field(init=False)  # backing off between attempts
    num_computed_tokens: IntColumn = field(init=False)  # by all attempts: cached at their ends, and thrown away
    num_abandoned_tokens: IntColumn = field(init=False)  # emitted in attempts before the last
    num_prefix_hit_tokens: IntColumn = field(init=False)  # found in the cache, at each admission, and not computed
    reject_reason: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.table)
        self.status = np.zeros(n, np.int8)
        self.arrival_ns = self.table.arrival_ns.copy()
        for name in self.TIMES:
            setattr(self, name, np.full(n, NEVER, np.int64))
        for name in self.COUNTS:
            setattr(self, name, np.zeros(n, np.int64))


class RequestCells:
    """The columns of ``RequestRecords`` for reading and writing single cells, three times as fast as through NumPy."""

    status: memoryview
    arrival_ns: memoryview
    first_scheduled_ns: memoryview
    first_token_ns: memoryview
    last_token_ns: memoryview
    end_ns: memoryview
    num_emitted_tokens: memoryview
    num_preemptions: memoryview
    num_recomputed_tokens: memoryview
    num_attempts: memoryview
    away_ns: memoryview
    num_computed_tokens: memoryview
    num_abandoned_tokens: memoryview
    num_prefix_hit_tokens: memoryview

    def __init__(self, requests: RequestRecords) -> None:
        for name in ("status", "arrival_ns", *requests.TIMES, *requests.COUNTS):
            setattr(self, name, memoryview(getattr(requests, name)))


class RowBuffer:
    """Rows of equally many integers. A million spans must not become a million Python tuples, nor take 8 bytes for each
    of their small numbers: full blocks of rows are kept by column, each as narrow as its values allow."""

    def __init__(self, width: int, block_rows: int = 1 << 15) -> None:
        self._width, self._block_rows = width, block_rows
        self._open = array("q")  # the last rows, one after the other
        self._open_limit = width * block_rows
        self._blocks: list[list[npt.NDArray[np.signedinteger[Any]]]] = []  # columns of each
        self._num_kept = 0  # rows in blocks

    def append(self, row: Iterable[int]) -> None:
        """Add one row of exactly ``width`` integers."""
        self._open.extend(row)
        if len(self._open) >= self._open_limit:
            self._close()

    def append_all(self, rows: IntColumn) -> None:
        """Add rows, shape (rows, width)."""
        self._close()
        for begin in range(0, len(rows), self._block_rows):
            self._keep(rows[begin : begin + self._block_rows])

    def __len__(self) -> int:
        return self._num_kept + len(self._open) // self._width

    def column(self, i: int) -> IntColumn:
        """A copy of column ``i``."""
        self._close()
        parts = [block[i] for block in self._blocks]
        return np.concatenate(parts, dtype=np.int64) if parts else np.zeros(0, np.int64)

    def _close(self) -> None:
        if self._open:
            self._keep(np.array(self._open, np.int64).reshape(-1, self._width))
            self._open = array("q")

    def _keep(self, rows: IntColumn) -> None:
        columns = np.ascontiguousarray(rows.T)
        ends = zip(columns, columns.min(axis=1).tolist(), columns.max(axis=1).tolist(), strict=True)
        self._blocks.append([column.astype(_narrowest(low, high)) for column, low, high in ends])
        self._num_kept += len(rows)


def _narrowest(low: int, high: int) -> type[np.signedinteger[Any]]:
    for kind in (np.int8, np.int16, np.int32):
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return kind
    return np.int64


class Columns(Mapping[str, IntColumn]):
    """The columns of a ``RowBuffer`` by name, int64, each put together when it is asked for: all of a long run's at
    once would take more memory than everything else."""

    def __init__(self, rows: RowBuffer, names: tuple[str, ...]) -> None:
        self._rows = rows
        self._places = {name: i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> IntColumn:
        return self._rows.column(self._places[name])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(slots=True)
class Span:
    """A stretch of steps of one decision, cut where something finishes; or an idle gap (``num_steps`` 0).

    ``*_begin`` and ``*_end`` values hold at the two ends, and quantities run linearly between them.
    """

    begin_ns: int = 0
    end_ns: int = 0
    num_steps: int = 0
    num_seqs: int = 0  # rows computed per step, finished members of a static batch included
    num_decodes: int = 0  # of them, decoding rows
    num_prefill_tokens: int = 0  # tokens per step in prefills, padding included; without a cache, of the first step
    num_emitted_tokens: int = 0  # output tokens emitted in the whole span
    num_finished_held: int = 0  # Σ over the span's steps of slots held by finished members (padding of static batches)
    num_running_begin: int = 0  # sequences admitted and not released
    num_waiting_begin: int = 0
    num_waiting_end: int = 0
    kv_used_begin: int = 0  # cache, in tokens: filled
    kv_used_end: int = 0
    kv_reserved_unused_begin: int = 0  # promised to a request that will fill it later
    kv_reserved_unused_end: int = 0
    kv_internal_begin: int = 0  # held, and never to be filled (over-declared, or the tail of a block)
    kv_internal_end: int = 0
    kv_external: int = 0  # free, in holes too small for the next request
    kv_cached_free_begin: int = 0  # free, and found by a sequence that begins alike
    kv_cached_free_end: int = 0
    num_extrapolated_steps: int = 0  # steps outside the step-time model's measured range


class SpanRecords:
    """The spans of a run, one row each, in order of time."""

    COLUMNS = tuple(item.name for item in fields(Span))

    def __init__(self) -> None:
        self.rows = RowBuffer(len(self.COLUMNS))

    def columns(self) -> Columns:
        """The rows as int64 columns by name."""
        return Columns(self.rows, self.COLUMNS)


class OccupancyRecords:
    """Who held which slot when: one row per admission. A preempted request has several rows."""

    COLUMNS = (
        "request_id",
        "slot",
        "admitted_ns",
        "decoding_ns",  # prefill ended (first token, or back in decode after a preemption); -1 if never
        "idle_ns",  # last token computed: from here to release the slot is held idle; -1 if preempted before
        "released_ns",
    )

    def __init__(self) -> None:
        self.rows = RowBuffer(len(self.COLUMNS))

    def columns(self) -> dict[str, IntColumn]:
        """The rows as int64 columns by name, in order of admission."""
        columns = self.as_released()
        order = np.lexsort((columns["request_id"], columns["admitted_ns"]))
        return {name: columns[name][order] for name in self.COLUMNS}

    def as_released(self) -> Columns:
        """The same in order of release, without the work of sorting them."""
        return Columns(self.rows, self.COLUMNS)


class LookUpRecords:
    """What was looked for in a prefix cache: one row per first admission of an attempt, in order of time. Tokens as in
    ``request.LookUp``."""

    COLUMNS = ("time_ns", "request_id", *LookUp._fields)

    def __init__(self) -> None:
        self.rows = RowBuffer(len(self.COLUMNS))

    def columns(self) -> Columns:
        """The rows as int64 columns by name."""
        return Columns(self.rows, self.COLUMNS)


@dataclass
class Records:
    """Everything one variant's run recorded."""

    requests: RequestRecords
    spans: SpanRecords = field(default_factory=SpanRecords)
    occupancy: OccupancyRecords = field(default_factory=OccupancyRecords)
    look_ups: LookUpRecords = field(default_factory=LookUpRecords)  # none without prefix caching
    itl_counts: IntColumn = field(default_factory=lambda: np.zeros(_NUM_ITL_BINS, np.int64))
    itl_max_s: float = 0.0
    itl_sum_ns: int = 0
    num_steps: int = 0
    num_computed_tokens: int = 0  # pushed through the model, padding not counted
    num_attention_pairs: int = 0  # (query, key) pairs of all steps, padding included
    num_padding_tokens: int = 0  # prompt padding of static batches plus steps of finished members
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_prefix_hit_tokens: int = 0  # found in the cache at admissions, and not computed
    num_looked_up_tokens: int = 0  # known tokens at first admissions
    num_found_tokens: int = 0  # of them, those found in the cache
    num_prefix_evictions: int = 0  # blocks that were taken while they could be found
    draft_tokens: int = 0  # of a pass and sequence, γ; 0 without speculation
    num_passes: int = 0  # of every sequence, each in which its drafts were verified
    num_accepted_tokens: int = 0  # drafts that agreed with the target, those beyond an answer's end too
    num_rejected_tokens: int = 0  # computed in passes and rolled back
    num_turned_away: int = 0  # answers 429, one request may get several
    num_timed_out_attempts: int = 0
    num_arrived: int = 0
    stopped_ns: int = NEVER  # when the run was stopped before its end
    swapped_bytes: int = 0
    in_system_ns: int = 0  # ∫ (waiting + running) dt, integer, as the engine counted it
    capacity_tokens: int = 0
    max_num_seqs: int = 0
