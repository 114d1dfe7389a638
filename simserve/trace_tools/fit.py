"""A generator fitted to a trace: a rate and a cv for each window of time (as ServeGen's clients have), and lengths.

What is left out is said: sessions, priorities and what prompts share, and that long prompts may go with long answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn, RequestTable
from simserve.scenario import GeneratedWorkload
from simserve.scenario.arrival_models import MAX_RATE_RPS
from simserve.trace_tools.profile import NUM_WINDOWS
from simserve.workload.build import build_workload
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import UNDECLARED, Trace

REQUESTS_PER_WINDOW = 200
MAX_WINDOWS = 96
COARSE = 0.5  # share of requests at the time of another from which gaps say nothing
MIN_GAPS = 20  # fewer say nothing about their cv
NUM_VALUES = 500  # quantiles that stand for a distribution of lengths
GOOD_ENOUGH = 0.05  # KS distance up to which two numbers stand for a whole distribution
LAWS = ("gamma", "weibull")

FloatColumn = npt.NDArray[np.float64]
Columns = dict[str, FloatColumn]


class Fit(NamedTuple):
    """``workload`` is a scenario's section; ``quality`` is how far its requests are from the trace's."""

    workload: dict[str, Any]
    quality: dict[str, Any]


def fit(trace: Trace, num_windows: int | None = None) -> Fit:
    """The generator nearest to a trace with times, and what it misses. ``num_windows`` are by default as many as have
    200 requests each, at most 96. Of gamma and Weibull gaps, and of lognormal lengths and quantiles, that is taken
    which is nearer in the Kolmogorov–Smirnov distance of one draw (but a lognormal up to a distance of 0.05)."""
    n = num_windows or min(MAX_WINDOWS, max(1, len(trace) // REQUESTS_PER_WINDOW))
    shapes = {"prompt_tokens": trace.num_prompt_tokens, "output_tokens": trace.num_output_tokens}
    lengths = {name: fitted_lengths(column) for name, column in shapes.items()}
    tried = []
    for law in LAWS:
        arrivals = fitted_arrivals(trace.arrival_ns, n, law)
        workload = {"num_requests": len(trace), "arrivals": arrivals, **lengths}
        tried.append(Fit(workload, _quality(trace, workload)))
    return min(tried, key=lambda each: float(each.quality["distances"].get("gap_s", {"trace": 0.0})["trace"]))


def fitted_arrivals(arrival_ns: IntColumn, num_windows: int, law: str) -> dict[str, Any]:
    """``arrivals:`` of a scenario, with windows of equal length over the trace's span."""
    times_s = arrival_ns / NS_PER_S
    if not times_s[-1]:
        return {"process": "all_at_once"}
    edges = np.linspace(0, times_s[-1], num_windows + 1)
    counts = np.histogram(times_s[1:], edges)[0]  # the first is the generator's own first
    cvs, overall = _window_cvs(arrival_ns, edges, counts)
    width_s, windows = edges[1], []
    for count, cv in zip(counts, cvs, strict=True):
        window = {"duration_s": _rounded(width_s), "rate_rps": _rounded(min(count / width_s, MAX_RATE_RPS))}
        windows.append(window if cv is None else window | {"cv": cv})
    return {"process": "windows", "gaps": law, "cv": overall, "windows": windows}


def _window_cvs(arrival_ns: IntColumn, edges: FloatColumn, counts: IntColumn) -> tuple[list[float | None], float]:
    """The cv of each window, None where too little is known, and of all together.

    Of the gaps that begin in it, measured in expected arrivals, so that a rate that changes from window to window is
    not taken for burstiness. Where clocks are so coarse that most requests share their time with another, gaps say
    nothing: then from the dispersion of the counts per tick, which for a renewal process tends to cv².
    """
    tick_ns = _tick_ns(arrival_ns)
    if _is_coarse(arrival_ns):
        per_tick = np.bincount(arrival_ns // tick_ns).astype(np.float64)
        return _by_window(per_tick, np.arange(len(per_tick)) * tick_ns / NS_PER_S, edges, _cv_of_counts)
    gaps = np.diff(np.interp(arrival_ns / NS_PER_S, edges, np.concatenate([[0.0], counts.cumsum()])))
    return _by_window(gaps, arrival_ns[:-1] / NS_PER_S, edges, _cv)


def _by_window(
    values: FloatColumn, begins_s: FloatColumn, edges: FloatColumn, measure: Callable[[FloatColumn], float]
) -> tuple[list[float | None], float]:
    place = np.searchsorted(begins_s, edges[:-1], side="left")
    parts = np.split(values, place[1:])
    known = [part for part in parts if len(part) >= MIN_GAPS]
    found = [measure(part) if len(part) >= MIN_GAPS else None for part in parts]
    if measure is _cv or not known:
        return found, measure(values)
    return found, _bounded(float(np.sqrt(np.mean([measure(part) ** 2 for part in known]))))


def _cv_of_counts(counts: FloatColumn) -> float:
    mean = float(counts.mean())
    return _bounded(float(np.sqrt(counts.var(ddof=1) / mean))) if mean and len(counts) > 1 else 1.0


def _tick_ns(arrival_ns: IntColumn) -> int:
    """The step of a trace's clock, where it is coarse: the commonest step between different times. Else the largest
    that all times are whole multiples of."""
    steps = np.diff(arrival_ns)
    if not _is_coarse(arrival_ns) or not steps.any():
        return max(1, int(np.gcd.reduce(arrival_ns)))
    values, counts = np.unique(steps[steps > 0], return_counts=True)
    return int(values[counts.argmax()])


def _is_coarse(arrival_ns: IntColumn) -> bool:
    return bool((np.diff(arrival_ns) == 0).mean() > COARSE) if len(arrival_ns) > 1 else False


def fitted_lengths(tokens: IntColumn) -> dict[str, Any]:
    """A scenario's distribution of lengths: one value, a lognormal that is near, or evenly spaced quantiles."""
    if (tokens == tokens[0]).all():
        return {"fixed": int(tokens[0])}
    logs = np.log(tokens)
    sigma, longest = float(logs.std()), int(tokens.max())
    mean = min(float(np.exp(logs.mean() + sigma**2 / 2)), float(2**31 - 1))
    lognormal = {"lognormal": {"mean": _rounded(mean), "sigma": _rounded(min(sigma, 10.0)), "max": longest}}
    draws = np.rint(np.random.default_rng(0).lognormal(float(logs.mean()), sigma, len(tokens))).clip(1, longest)
    if ks_distance(tokens.astype(np.float64), draws) <= GOOD_ENOUGH:
        return lognormal
    places = (np.arange(NUM_VALUES) + 0.5) / NUM_VALUES
    return {"values": [int(value) for value in np.quantile(tokens, places, method="inverted_cdf")]}


def ks_distance(a: FloatColumn, b: FloatColumn) -> float:
    """The largest difference between two samples' distribution functions (Kolmogorov–Smirnov)."""
    places = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(each), places, side="right") / len(each) for each in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def _quality(trace: Trace, workload: dict[str, Any]) -> dict[str, Any]:
    """Distances between the trace and one draw of the generator, beside those between two draws of it: nearer than that
    nothing can be."""
    config = GeneratedWorkload.model_validate(workload)
    draws = [build_workload(config, seed, Path()).table for seed in (0, 1)]
    tick_ns = _tick_ns(trace.arrival_ns)
    own, first, second = _columns(trace, tick_ns), _columns(draws[0], tick_ns), _columns(draws[1], tick_ns)
    distances = {
        name: {"trace": ks_distance(own[name], first[name]), "chance": ks_distance(first[name], second[name])}
        for name in own
        if len(own[name])
    }
    span_ns = int(max(trace.arrival_ns[-1], 1))
    curves = [_curve(each, span_ns) for each in (trace.arrival_ns, *(table.arrival_ns for table in draws))]
    return {
        "distances": distances,
        "rate_curve": {
            "window_s": span_ns / NS_PER_S / NUM_WINDOWS,
            "trace": curves[0].tolist(),
            "generator": curves[1].tolist(),
            "misplaced_share": _misplaced(curves[0], curves[1]),
            "misplaced_by_chance": _misplaced(curves[1], curves[2]),
        },
        "clock_is_coarse": _is_coarse(trace.arrival_ns),
        "clock_tick_s": tick_ns / NS_PER_S,
        "gap_cv": {"trace": _cv(own["gap_s"]), "generator": _cv(first["gap_s"])},
        "prompt_output_rank_correlation": _rank_correlation(trace),
        "left_out": _left_out(trace),
    }


def _columns(requests: Trace | RequestTable, tick_ns: int) -> Columns:
    """What is compared; times as the trace's clock would have told them."""
    return {
        "gap_s": np.diff(requests.arrival_ns // tick_ns * tick_ns) / NS_PER_S,
        "prompt_tokens": requests.num_prompt_tokens.astype(np.float64),
        "output_tokens": requests.num_output_tokens.astype(np.float64),
    }


def _curve(arrival_ns: IntColumn, span_ns: int) -> IntColumn:
    """Arrivals in even windows of the trace's span; what comes after it is in no window."""
    return np.histogram(arrival_ns, np.linspace(0, span_ns, NUM_WINDOWS + 1))[0].astype(np.int64)


def _misplaced(a: IntColumn, b: IntColumn) -> float:
    """The share of the first curve's requests that would have to move to make the second."""
    return float(np.abs(a - b).sum() / 2 / max(1, a.sum()))


def _rank_correlation(trace: Trace) -> float | None:
    """Spearman's, of prompt and output lengths; the generator has none."""
    ranks = [_ranks(column) for column in (trace.num_prompt_tokens, trace.num_output_tokens)]
    if any(each.std() == 0 for each in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: IntColumn) -> FloatColumn:
    """Places in order, the mean of them where values are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]


def _left_out(trace: Trace) -> list[str]:
    known = {
        "sessions": trace.session is not None,
        "shared prefixes": trace.content is not None,
        "priorities": bool(trace.priority.any()),
        "declared maxima": bool((trace.max_output_tokens != UNDECLARED).any()),
    }
    return [name for name, is_there in known.items() if is_there]


def _cv(gaps: FloatColumn) -> float:
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return _bounded(float(gaps.std()) / mean) if mean else 1.0


def _bounded(cv: float) -> float:
    """Within what a scenario may say."""
    return _rounded(min(max(cv, 0.001), 100.0))


def _rounded(value: float) -> float:
    """Six digits."""
    return float(f"{value:.6g}")
