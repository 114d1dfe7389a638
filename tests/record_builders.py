"""Raw records made by hand, so that a formula can be checked without an engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.records import Records, RequestRecords, SpanRecords, itl_bin
from simserve.request import RequestTable

S = 1_000_000_000


@dataclass(frozen=True)
class Slo:
    """The shape of a scenario's ``slo`` section."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True)
class Served:
    """One finished request: times in seconds; ``end_s`` defaults to the last token's time."""

    arrival_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    num_output_tokens: int
    num_prompt_tokens: int = 10
    end_s: float | None = None


def records_of(*requests: Served, num_rejected: int = 0, capacity_tokens: int = 100) -> Records:
    """Records of finished requests, then of rejected ones that arrived with the last of them."""
    n = len(requests) + num_rejected
    tail = [0] * num_rejected
    last_arrival = requests[-1].arrival_s if requests else 0.0
    outputs = np.array([r.num_output_tokens for r in requests] + [1] * num_rejected, np.int64)
    table = RequestTable(
        arrival_ns=_ns([r.arrival_s for r in requests] + [last_arrival] * num_rejected),
        num_prompt_tokens=np.array([r.num_prompt_tokens for r in requests] + [9999] * num_rejected, np.int64),
        num_output_tokens=outputs,
        max_output_tokens=outputs,
        priority=np.zeros(n, np.int64),
    )
    rows = RequestRecords(table)
    k = len(requests)
    rows.status[:k], rows.status[k:] = 2, 3
    rows.first_scheduled_ns[:k] = _ns([r.scheduled_s for r in requests])
    rows.first_token_ns[:k] = _ns([r.first_token_s for r in requests])
    rows.last_token_ns[:k] = _ns([r.last_token_s for r in requests])
    rows.end_ns[:] = _ns([r.last_token_s if r.end_s is None else r.end_s for r in requests] + tail)
    rows.num_emitted_tokens[:k] = outputs[:k]
    rows.reject_reason.update({i: "prompt + output beyond max_model_len" for i in range(k, n)})
    return Records(rows, capacity_tokens=capacity_tokens)


def add_span(records: Records, begin_s: float, end_s: float, **values: int) -> None:
    """One span; columns not named are 0, except that each ``_end`` defaults to its ``_begin``."""
    values = {"begin_ns": round(begin_s * S), "end_ns": round(end_s * S), **values}
    row = [
        values.get(name, values.get(name.replace("_end", "_begin"), 0) if name != "end_ns" else 0)
        for name in SpanRecords.COLUMNS
    ]
    unknown = values.keys() - set(SpanRecords.COLUMNS)
    assert not unknown, unknown
    records.spans.rows.append(tuple(row))
    records.num_steps += values.get("num_steps", 0)


def add_gaps(records: Records, gaps_s: list[float]) -> None:
    """Count gaps between tokens as the engine does."""
    for gap in gaps_s:
        records.itl_counts[itl_bin(gap)] += 1
        records.itl_max_s = max(records.itl_max_s, gap)
        records.itl_sum_ns += round(gap * S)


def _ns(seconds: list[float]) -> np.ndarray:
    return np.array([round(s * S) for s in seconds], np.int64)
