"""What is known of a run that happened elsewhere: when each request came, and when its tokens did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simserve.distributions import FloatColumn
from simserve.recorded.steps import StepRecord
from simserve.records import NEVER
from simserve.request import IntColumn, RequestTable
from simserve.step_time.stretch import NS_PER_S

UNTOLD = -1  # a length that the file does not tell


@dataclass(frozen=True)
class RecordedRun:
    """A run in columns, a row per request in order of arrival; integer nanoseconds from the first arrival, -1 for what
    never happened.

    ``table`` has arrivals and lengths (``UNTOLD`` where the file has none). ``end_ns`` is when the client had its whole
    answer, where that is not its last token. ``file_rows``: which row of its file each request was. ``itl_s`` holds
    every gap between consecutive tokens of a request. ``mean_batch_size`` is over steps, for a run that keeps none of
    them. ``steps`` name requests by their rows in the file, and
    ``arrived_step`` counts the steps that the engine had begun before it was told of each. ``settings`` are keys of a
    scenario, dotted, as far as the run tells with what it was made; ``reference_s`` is what a fixed piece of work took
    beside it, as in a profile's provenance; ``engine`` says in words what served it; ``notes``
    are what a reader of the figures must know.
    """

    source: str
    format: str
    table: RequestTable
    first_token_ns: IntColumn
    last_token_ns: IntColumn
    end_ns: IntColumn
    file_rows: IntColumn
    first_scheduled_ns: IntColumn | None = None
    num_preemptions: int | None = None
    mean_batch_size: float | None = None
    itl_s: FloatColumn | None = None
    steps: tuple[StepRecord, ...] | None = None
    arrived_step: IntColumn | None = None
    engine: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    reference_s: float | None = None

    def __len__(self) -> int:
        return len(self.table)

    @property
    def has_lengths(self) -> bool:
        """Whether prompts and outputs are told."""
        return bool((self.table.num_prompt_tokens > 0).all() and (self.table.num_output_tokens > 0).all())

    @property
    def finished(self) -> np.typing.NDArray[np.bool_]:
        """Requests that got their last token."""
        return np.asarray(self.last_token_ns != NEVER)


@dataclass(frozen=True)
class Stamps:
    """Columns of a file in its own order: seconds on one clock (NaN for what never happened), and tokens."""

    arrival_s: FloatColumn
    first_token_s: FloatColumn
    last_token_s: FloatColumn
    num_prompt_tokens: IntColumn | None = None
    num_output_tokens: IntColumn | None = None
    first_scheduled_s: FloatColumn | None = None
    end_s: FloatColumn | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)


def recorded_run(source: str, form: str, stamps: Stamps, **known: Any) -> RecordedRun:  # noqa: ANN401 - of RecordedRun
    """Stamps to a run: sorted by arrival (stably), times from the earliest. ``known`` are further fields of the run
    that do not go by rows. A request without a last token counts as unfinished: its first token is dropped too."""
    order = np.argsort(stamps.arrival_s, kind="stable")
    begin_s = float(stamps.arrival_s[order[0]])
    last = _ns(stamps.last_token_s, begin_s)[order]
    end = last if stamps.end_s is None else _ns(stamps.end_s, begin_s)[order]
    first = _ns(stamps.first_token_s, begin_s)[order]
    scheduled = stamps.first_scheduled_s
    return RecordedRun(
        source=source,
        format=form,
        table=_table(stamps, _ns(stamps.arrival_s, begin_s)[order], order),
        first_token_ns=np.where(last == NEVER, NEVER, first),
        last_token_ns=last,
        end_ns=np.where((last == NEVER) | (end == NEVER), last, end),
        file_rows=order,
        first_scheduled_ns=None if scheduled is None else _ns(scheduled, begin_s)[order],
        **known,
    )


def table_of(arrival_ns: IntColumn, prompts: IntColumn, outputs: IntColumn) -> RequestTable:
    """Requests that declare what they get."""
    return RequestTable(arrival_ns, prompts, outputs, outputs, np.zeros(len(arrival_ns), np.int64))


def _table(stamps: Stamps, arrival_ns: IntColumn, order: IntColumn) -> RequestTable:
    untold = np.full(len(order), UNTOLD, np.int64)
    columns: Sequence[IntColumn | None] = (stamps.num_prompt_tokens, stamps.num_output_tokens)
    prompts, outputs = (untold if column is None else column[order] for column in columns)
    return table_of(arrival_ns, prompts, outputs)


def _ns(seconds: FloatColumn, begin_s: float) -> IntColumn:
    """Nanoseconds since ``begin_s``; the difference first, for a wall clock's seconds leave few digits."""
    known = np.isfinite(seconds)
    return np.where(known, np.rint(np.where(known, seconds - begin_s, 0.0) * NS_PER_S), NEVER).astype(np.int64)
