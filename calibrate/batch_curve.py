"""Decode throughput over batch size, and its knee."""

from __future__ import annotations

from simserve.step_time.knee import batch_knee
from simserve.step_time.profile_schema import BatchCurve, BatchPoint, Table

__all__ = ["batch_knee", "make_batch_curve"]

_LEAST_CONTEXT = 64  # a decode over fewer cached tokens is rare in service


def make_batch_curve(decode: Table) -> BatchCurve:
    """The curve at the first context from 64 on that most batch sizes were measured at."""
    counts: dict[int, int] = {}
    for row in decode.rows:
        for context in row.contexts:
            counts[context] = counts.get(context, 0) + 1
    context = max(counts, key=lambda c: (counts[c], c >= _LEAST_CONTEXT, -c))
    step_s = {row.row: row.seconds[row.contexts.index(context)] for row in decode.rows if context in row.contexts}
    first, first_s = next(iter(step_s.items()))
    points = tuple(
        BatchPoint(
            batch_size=batch,
            seconds=seconds,
            tokens_per_s=batch / seconds,
            latency_ratio=seconds / first_s,
            throughput_ratio=(batch / seconds) / (first / first_s),
        )
        for batch, seconds in step_s.items()
    )
    return BatchCurve(num_context_tokens=context, points=points, knee=batch_knee(step_s))
