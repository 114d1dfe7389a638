"""A trace in numbers: how many, how fast, how bursty, how long, and how much of its prompts comes again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn, RequestTable
from simserve.trace_tools.measures import dispersion, rank_correlation, window_sizes_s
from simserve.workload.content import num_blocks, repeated_tokens
from simserve.workload.sessions import NO_SESSION, OWN_TIME
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import UNDECLARED, Trace

Profile = dict[str, Any]
PERCENTILES = (1, 25, 50, 75, 90, 95, 99)
NUM_WINDOWS = 60


def profile(trace: Trace) -> Profile:
    """What ``simserve trace info`` knows of a trace; tokens and seconds, shares from 0 to 1, null where unknown."""
    return {
        "format": trace.format_name,
        "num_rows": trace.num_rows,
        "num_requests": len(trace),
        "arrivals": _arrivals(trace) if trace.has_times else None,
        "num_prompt_tokens": lengths(trace.num_prompt_tokens),
        "num_output_tokens": lengths(trace.num_output_tokens),
        "prompt_output_rank_correlation": rank_correlation(trace.num_prompt_tokens, trace.num_output_tokens),
        "declared_max_output_tokens": _declared(trace),
        "priorities": _priorities(trace.priority),
        "tenants": _tenants(trace),
        "sessions": _sessions(trace),
        "prefix": prefix_bound(trace),
        "notes": list(trace.notes),
    }


def _arrivals(trace: Trace) -> Profile:
    """Rates in requests per second. Burstiness twice: the CV of the gaps (Poisson: 1), and the dispersion of the counts
    (variance over mean, Poisson: 1) in the windows of the picture and of round sizes, which also sees what is slower
    than a gap."""
    span_ns = int(trace.arrival_ns[-1])
    counts = window_counts(trace.arrival_ns)
    gaps = np.diff(trace.arrival_ns)
    window_s = span_ns / NS_PER_S / len(counts)
    return {
        "span_s": span_ns / NS_PER_S,
        "mean_rate_rps": _ratio((len(trace) - 1) * NS_PER_S, span_ns),
        "peak_rate_rps": _ratio(float(counts.max()), window_s),
        "window_s": window_s,
        "gap_cv": _ratio(float(gaps.std()), float(gaps.mean())) if span_ns else None,
        "count_dispersion": float(counts.var() / counts.mean()) if span_ns and len(counts) > 1 else None,
        "dispersion": [
            {"window_s": size_s, "variance_over_mean": dispersion(trace.arrival_ns, size_s, span_ns)}
            for size_s in window_sizes_s(trace.arrival_ns)
        ],
        "longest_gap_s": float(gaps.max()) / NS_PER_S if len(gaps) else None,
        "share_at_the_time_of_another": float((gaps == 0).mean()) if len(gaps) else None,
        "counts": counts.tolist(),
    }


def window_counts(arrival_ns: IntColumn, num_windows: int = NUM_WINDOWS) -> IntColumn:
    """Arrivals in windows of equal length from the first to the last one, which counts into the last window."""
    span_ns = int(arrival_ns[-1])
    if not span_ns:
        return np.array([len(arrival_ns)], np.int64)
    n = min(num_windows, span_ns)
    edges = np.linspace(0, span_ns, n + 1)
    return np.histogram(arrival_ns, edges)[0].astype(np.int64)


def lengths(tokens: IntColumn) -> Profile:
    """A distribution of lengths: sum, mean, extremes and percentiles (numpy's ``linear``)."""
    quantiles = dict(zip(PERCENTILES, np.percentile(tokens, PERCENTILES), strict=True))
    named: Profile = {"sum": int(tokens.sum()), "mean": float(tokens.mean()), "min": int(tokens.min())}
    named |= {f"p{q}": float(value) for q, value in quantiles.items()}
    return named | {"max": int(tokens.max())}


def prefix_bound(trace: Trace) -> Profile | None:
    """What a prefix cache that forgets nothing would save, in the trace's order: no engine can hit more. Null where
    the trace does not say what its prompts hold."""
    content = trace.content
    if content is None:
        return None
    names = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_output_tokens", "priority")
    table = RequestTable(**{name: getattr(trace, name) for name in names}, content=content)
    repeated, total = repeated_tokens(table)
    listed, distinct = num_blocks(content)
    block_tokens = content[0].block_tokens
    return {
        "block_tokens": block_tokens,
        "num_requests_with_blocks": sum(content[i].num_tokens >= block_tokens for i in range(len(content))),
        "num_blocks": listed,
        "num_distinct_blocks": distinct,
        "repeated_tokens": repeated,
        "hit_rate_bound": repeated / total,
    }


def _declared(trace: Trace) -> Profile | None:
    declared: npt.NDArray[np.bool_] = trace.max_output_tokens != UNDECLARED
    if not declared.any():
        return None
    return {"num_requests": int(declared.sum()), "max": int(trace.max_output_tokens.max())}


def _priorities(priority: IntColumn) -> dict[str, int]:
    values, counts = np.unique(priority, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


def _tenants(trace: Trace) -> dict[str, int] | None:
    """How many requests each sends; null where they are nobody's in particular."""
    if trace.tenants is None:
        return None
    counts = np.bincount(trace.tenants.of, minlength=len(trace.tenants.each)).tolist()
    return {tenant.name: count for tenant, count in zip(trace.tenants.each, counts, strict=True)}


def _sessions(trace: Trace) -> Profile | None:
    """How many sessions, how many requests each has, and how many of these wait for the answer before."""
    session = trace.session
    if session is None:
        return None
    turns = np.unique(session[session != NO_SESSION], return_counts=True)[1]
    if not len(turns):
        return None
    return {
        "num_sessions": len(turns),
        "num_requests": int(turns.sum()),
        "mean_requests": float(turns.mean()),
        "max_requests": int(turns.max()),
        "num_waiting": 0 if trace.wait_ns is None else int((trace.wait_ns != OWN_TIME).sum()),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
