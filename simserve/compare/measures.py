"""What is compared, and its value in every resample of a run.

A rate of a resample is what its requests produced over the time that they took up. The latest completion among the
requests so far moves on with some requests and stands still with others (with the members of a static batch, say, but
the first): what it gains is shared evenly among the one that moved it and those that follow until it moves again. These
times add up to the makespan, so resample 0 gives exactly the run's own rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.compare.requests import LATENCIES, Requests
from simserve.compare.resample import Resamples
from simserve.distributions import FloatColumn
from simserve.fairness import SLO_LATENCIES, good_requests
from simserve.request import IntColumn

RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "goodput_rps", "makespan_s")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
WITHOUT_INTERVAL = (
    *(f"itl_s.{statistic}" for statistic in ("mean", *QUANTILES)),
    "mean_batch_size",
    "busy_share",
    "num_preemptions",
    "kv_cache.mean_used",
    "kv_cache.prefix_hit_rate",
    *(f"fairness.{compared}" for compared in ("speed", "slo_attainment", "served_share")),
)
HIGHER_IS_BETTER = frozenset(RATES) - {"makespan_s"}
NEUTRAL = frozenset({"mean_batch_size", "busy_share", "kv_cache.mean_used"})
MAX_BINS = 2048
MIN_BEYOND = 5  # requests that must lie beyond a quantile: the bootstrap says nothing about extremes
MIN_REQUESTS = 10


def measure_names() -> list[str]:
    """Every measure with an interval, as dotted paths of ``summary.json``."""
    return [*RATES, *(f"{latency}.{statistic}" for latency in LATENCIES for statistic in ("mean", *QUANTILES))]


def drawn_rates(requests: Requests, slo: Mapping[str, Any], resamples: Resamples) -> dict[str, FloatColumn]:
    """``RATES`` of every resample; ``slo`` as in a scenario, for those whose tenant has no limits of its own. NaN where
    a resample took no time."""
    columns, finished = requests.columns, requests.finished
    outputs = np.where(finished, columns["num_emitted_tokens"], 0.0)
    prompts = np.where(finished, columns["num_prompt_tokens"], 0.0)
    made = (outputs, prompts + outputs, finished.astype(np.float64), _meets(requests, slo).astype(np.float64))
    elapsed = resamples.sums(time_taken_up(requests))
    elapsed[elapsed <= 0] = np.nan
    rates = [resamples.sums(amount) / elapsed for amount in made]
    return dict(zip(RATES, [*rates, elapsed], strict=True))


def drawn_latencies(requests: Requests, latency: str, resamples: Resamples) -> dict[str, FloatColumn]:
    """Mean and quantiles of one latency in every resample, over the requests that have it; NaN where none has."""
    values = requests.columns[latency]
    known = np.isfinite(values)
    if known.sum() < MIN_REQUESTS:
        return {}
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = resamples.sums(np.where(known, values, 0.0)) / resamples.sums(known.astype(np.float64))
    bins, low, high = binned(values[known])
    cells = resamples.cell_of(len(requests))[known]
    shape = (len(resamples.starts), len(low))
    histogram = np.bincount(cells * shape[1] + bins, minlength=shape[0] * shape[1]).reshape(shape)
    cumulative = np.cumsum(resamples.weights @ histogram.astype(np.float32), axis=1, dtype=np.float64)
    kept = {name: q for name, q in QUANTILES.items() if known.sum() * (1 - q) >= MIN_BEYOND * (1 - 1e-9)}
    return {"mean": mean} | {name: quantiles(cumulative, low, high, q) for name, q in kept.items()}


def binned(values: FloatColumn) -> tuple[IntColumn, FloatColumn, FloatColumn]:
    """The bin of each value, and the least and greatest value of each bin.

    Up to ``MAX_BINS`` distinct values have a bin each; more share bins of equally many.
    """
    distinct, bins = np.unique(values, return_inverse=True)
    if len(distinct) <= MAX_BINS:
        return bins, distinct, distinct
    edges = np.arange(MAX_BINS + 1) * len(distinct) // MAX_BINS
    shared = np.searchsorted(edges, bins, side="right") - 1
    return shared, distinct[edges[:-1]], distinct[edges[1:] - 1]


def quantiles(cumulative: FloatColumn, low: FloatColumn, high: FloatColumn, q: float) -> FloatColumn:
    """The ``q``-quantile of each row of cumulative counts: numpy's ``linear``, values spread evenly inside a bin."""
    rank = q * np.maximum(cumulative[:, -1] - 1, 0)
    below = np.floor(rank)
    first, second = (_at_rank(cumulative, low, high, r) for r in (below, below + 1))
    known = cumulative[:, -1] > 0
    return np.where(known, first + (rank - below) * (second - first), np.nan)


def _at_rank(cumulative: FloatColumn, low: FloatColumn, high: FloatColumn, rank: FloatColumn) -> FloatColumn:
    rank = np.minimum(rank, np.maximum(cumulative[:, -1] - 1, 0))
    i = np.minimum((cumulative <= rank[:, None]).sum(axis=1), cumulative.shape[1] - 1)
    rows = np.arange(len(cumulative))
    before = np.where(i > 0, cumulative[rows, i - 1], 0.0)
    inside = (rank - before + 0.5) / np.maximum(cumulative[rows, i] - before, 1.0)
    return np.asarray(low[i] + inside * (high[i] - low[i]), np.float64)


def time_taken_up(requests: Requests) -> FloatColumn:
    """Seconds of the makespan that each request stands for (see the module's docstring)."""
    arrivals = requests.columns["arrival_s"]
    ends = np.where(requests.finished, requests.columns["end_s"], arrivals[0])
    gains = np.diff(np.maximum.accumulate(ends), prepend=arrivals[0])
    moves = np.flatnonzero(gains > 0)
    first = np.unique(np.append(0, moves))
    sizes = np.diff(np.append(first, len(gains)))
    return np.repeat(gains[first] / sizes, sizes)


def _meets(requests: Requests, slo: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Finished requests that meet every SLO named, as ``metrics`` counts goodput."""
    common = SimpleNamespace(**{name: slo.get(name) for name in SLO_LATENCIES})
    return good_requests(requests.columns, requests.finished, common, requests.tenants)
