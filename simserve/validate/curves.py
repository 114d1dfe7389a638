"""What the page draws of both sides: distributions, and what went on over time. Bounded in size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simserve.distributions import FloatColumn
from simserve.report.aggregate import quantile_curve, quantile_levels, rounded
from simserve.request import IntColumn
from simserve.step_time.stretch import NS_PER_S
from simserve.validate.observed import LATENCIES, Mask, Observed, latency_columns

NUM_BINS = 120
_ROWS_AT_ONCE = 20_000


def curves(measured: Sequence[Observed], predicted: Sequence[Observed], counted: Mask) -> dict[str, Any]:
    """``latencies``: quantiles of both at common ``levels``, all runs' requests together; ``over_time``: in equal bins,
    output tokens/s, requests that wait for their first token and requests that produce tokens, means over the runs."""
    levels = quantile_levels()
    latencies: dict[str, dict[str, Any]] = {name: {} for name in LATENCIES}
    for side, runs in (("measured", measured), ("predicted", predicted)):
        columns = [latency_columns(run, counted) for run in runs]
        for name in columns[0]:
            together = np.concatenate([column[name] for column in columns])
            latencies[name][side] = rounded(quantile_curve(together, levels))
        latencies["itl_s"][side] = rounded(_gap_curve(runs, levels))
    return {"levels": rounded(levels), "latencies": latencies, "over_time": _over_time(measured, predicted, counted)}


def _gap_curve(runs: Sequence[Observed], levels: FloatColumn) -> FloatColumn:
    gaps = [run.gaps_s for run in runs if run.gaps_s is not None]
    if not gaps:
        return np.full(len(levels), np.nan)
    values = np.concatenate(gaps)
    if not len(values):
        return np.full(len(levels), np.nan)
    if runs[0].gap_counts is None:
        return quantile_curve(values, levels)
    ranks = np.searchsorted(np.cumsum(runs[0].gap_counts), levels * runs[0].gap_counts.sum(), side="left")
    return np.asarray(values[np.minimum(ranks, len(values) - 1)], np.float64)


def _over_time(measured: Sequence[Observed], predicted: Sequence[Observed], counted: Mask) -> dict[str, Any]:
    ends = [int(run.end_ns[counted].max(initial=0)) for run in (*measured, *predicted)]
    edges = np.linspace(0.0, max(*ends, 1), NUM_BINS + 1)
    sides = {"measured": measured, "predicted": predicted}
    lines = {side: [_timeline(run, counted, edges) for run in runs] for side, runs in sides.items()}
    return {
        "time_s": rounded((edges[1:] + edges[:-1]) / 2 / NS_PER_S),
        **{
            name: {side: rounded(np.mean([run[name] for run in runs], axis=0)) for side, runs in lines.items()}
            for name in lines["measured"][0]
        },
    }


def _timeline(run: Observed, counted: Mask, edges: FloatColumn) -> dict[str, FloatColumn]:
    """Means in each bin. Tokens after the first are taken as evenly spread up to the last."""
    rows = np.flatnonzero(counted)
    tokens, waiting, producing = (np.zeros(len(edges)) for _ in range(3))
    for part in np.array_split(rows, max(1, -(-len(rows) // _ROWS_AT_ONCE))):
        arrival, first, last = (column[part] for column in (run.arrival_ns, run.first_token_ns, run.last_token_ns))
        until_last = _elapsed(first, last, edges)
        spread = np.divide(run.num_output_tokens[part] - 1.0, np.maximum(last - first, 1))
        tokens += (edges[:, None] >= first).sum(axis=1) + until_last @ spread
        waiting += _elapsed(arrival, first, edges).sum(axis=1)
        producing += until_last.sum(axis=1)
    widths = np.diff(edges)
    return {
        "output_tokens_per_s": np.diff(tokens) / widths * NS_PER_S,
        "num_waiting": np.diff(waiting) / widths,
        "num_producing": np.diff(producing) / widths,
    }


def _elapsed(begin: IntColumn, end: IntColumn, edges: FloatColumn) -> FloatColumn:
    """How much of each [begin, end] lies before each edge: a row per edge."""
    return np.asarray(np.clip(edges[:, None], begin, end) - begin, np.float64)
