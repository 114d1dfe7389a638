"""Arrivals as a scenario says them: a rate and a cv for each window of time, as ServeGen's clients have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.request import IntColumn
from simserve.scenario.arrival_models import MAX_RATE_RPS
from simserve.scenario.workload_models import GeneratedWorkload
from simserve.trace_tools.measures import ks_distance
from simserve.workload.generate import arrival_times_s
from simserve.workload.timestamps import NS_PER_S

COARSE = 0.5  # share of requests at the time of another from which gaps say nothing
MIN_GAPS = 20  # fewer say nothing about their cv, and are Poisson for all we know
LAWS = ("gamma", "weibull")
REQUESTS_PER_WINDOW, MAX_WINDOWS = 200, 96
LEAST_PER_WINDOW, MORE_WINDOWS = 20, 500
POOR = 0.1  # KS distance of gaps from which more windows are tried …
ABOUT = 1.1  # … and how much nearer the best must be to be worth as many

FloatColumn = npt.NDArray[np.float64]
Arrivals = dict[str, Any]


class Clock(NamedTuple):
    """When a trace ends, and the step of its clock: where it is coarse the commonest step between different times, else
    the largest that all times are whole multiples of."""

    span_ns: int
    tick_ns: int

    @classmethod
    def of(cls, arrival_ns: IntColumn) -> Clock:
        steps, span_ns = np.diff(arrival_ns), int(arrival_ns[-1])
        if not is_coarse(arrival_ns) or not steps.any():
            return cls(span_ns, max(1, int(np.gcd.reduce(arrival_ns))))
        values, counts = np.unique(steps[steps > 0], return_counts=True)
        return cls(span_ns, int(values[counts.argmax()]))

    def gaps_s(self, arrival_ns: IntColumn) -> FloatColumn:
        """Gaps as this clock would have told them."""
        return np.diff(arrival_ns // self.tick_ns * self.tick_ns) / NS_PER_S


def is_coarse(arrival_ns: IntColumn) -> bool:
    """Whether most requests share their time with another."""
    return bool((np.diff(arrival_ns) == 0).mean() > COARSE) if len(arrival_ns) > 1 else False


def nearest_arrivals(arrival_ns: IntColumn, num_windows: int | None, clock: Clock) -> Arrivals:
    """``arrivals:`` of a scenario, of gamma or Weibull gaps, whichever are nearer to the trace's in the
    Kolmogorov–Smirnov distance of one draw. Times are from a first arrival at 0.

    Windows are by default as many as have 200 requests each, at most 96; where that leaves gaps further away than 0.1,
    as with traffic that stops and goes, more of them are tried, and the fewest taken that are about as near as any.
    """
    most = max(1, len(arrival_ns) // LEAST_PER_WINDOW)
    usual = num_windows or min(MAX_WINDOWS, max(1, len(arrival_ns) // REQUESTS_PER_WINDOW))
    found, distance = _nearest_law(arrival_ns, usual, clock)
    if num_windows is not None or distance <= POOR:
        return found
    more = [min(times * usual, most, MORE_WINDOWS) for times in (2, 4, 10)]
    tried = [(found, distance), *(_nearest_law(arrival_ns, n, clock) for n in dict.fromkeys(more) if n > usual)]
    least = min(distance for _, distance in tried)
    return next(arrivals for arrivals, distance in tried if distance <= ABOUT * least)


def _nearest_law(arrival_ns: IntColumn, num_windows: int, clock: Clock) -> tuple[Arrivals, float]:
    found = [fitted_arrivals(arrival_ns, num_windows, law, clock) for law in LAWS]
    gaps_s = clock.gaps_s(arrival_ns)
    if not len(gaps_s) or not clock.span_ns:
        return found[0], 0.0
    distances = [ks_distance(gaps_s, clock.gaps_s(_drawn(arrivals, len(arrival_ns)))) for arrivals in found]
    return min(zip(found, distances, strict=True), key=lambda pair: pair[1])


def _drawn(arrivals: Arrivals, num_requests: int) -> IntColumn:
    config = GeneratedWorkload.model_validate(
        {
            "num_requests": num_requests,
            "arrivals": arrivals,
            "prompt_tokens": {"fixed": 1},
            "output_tokens": {"fixed": 1},
        }
    ).arrivals
    assert config is not None
    times_s = arrival_times_s(config, num_requests, np.random.default_rng(0))
    return np.rint(times_s * NS_PER_S).astype(np.int64)


def fitted_arrivals(arrival_ns: IntColumn, num_windows: int, law: str, clock: Clock) -> Arrivals:
    """``arrivals:`` of a scenario, with windows of equal length over the trace's span; times are from a first arrival
    at 0, which no window counts: it is the generator's own."""
    if not clock.span_ns:
        return {"process": "all_at_once"}
    edges = np.linspace(0, clock.span_ns / NS_PER_S, num_windows + 1)
    counts = np.histogram(arrival_ns[1:] / NS_PER_S, edges)[0]
    cvs, overall = _window_cvs(arrival_ns, edges, counts, clock)
    width_s, windows = edges[1], []
    for count, cv in zip(_without_chance(counts, cvs, overall), cvs, strict=True):
        window = {"duration_s": rounded(width_s), "rate_rps": rounded(min(count / width_s, MAX_RATE_RPS))}
        windows.append(window if cv is None else window | {"cv": cv})
    return {"process": "windows", "gaps": law, "cv": overall, "windows": windows}


def _without_chance(counts: IntColumn, cvs: list[float | None], overall: float) -> FloatColumn:
    """Expected counts whose spread is that of the counts less what chance adds, cv² · mean for a renewal process: the
    generator adds that again. Nobody comes where nobody came."""
    if len(counts) < 2 or not counts.any():
        return counts.astype(np.float64)
    chance = float(
        np.mean([count * (overall if cv is None else cv) ** 2 for count, cv in zip(counts, cvs, strict=True)])
    )
    spread, mean = float(counts.var(ddof=1)), float(counts.mean())
    kept = max(0.0, 1 - chance / spread) ** 0.5 if spread else 0.0
    expected = np.where(counts > 0, mean + kept * (counts - mean), 0.0)
    expected *= counts.sum() / expected.sum()
    return expected


def _window_cvs(
    arrival_ns: IntColumn, edges: FloatColumn, counts: IntColumn, clock: Clock
) -> tuple[list[float | None], float]:
    """The cv of each window, None where too little is known, and of all together.

    Of the gaps that begin in it, measured in expected arrivals, so that a rate that changes from window to window is
    not taken for burstiness. Where clocks are so coarse that most requests share their time with another, gaps say
    nothing: then from the dispersion of the counts per tick, which for a renewal process tends to cv².
    """
    if is_coarse(arrival_ns):
        per_tick = np.bincount(arrival_ns // clock.tick_ns).astype(np.float64)
        return _by_window(per_tick, np.arange(len(per_tick)) * clock.tick_ns / NS_PER_S, edges, _cv_of_counts)
    gaps = np.diff(np.interp(arrival_ns / NS_PER_S, edges, np.concatenate([[0.0], counts.cumsum()])))
    return _by_window(gaps, arrival_ns[:-1] / NS_PER_S, edges, cv_of)


def _by_window(
    values: FloatColumn, begins_s: FloatColumn, edges: FloatColumn, measure: Callable[[FloatColumn], float]
) -> tuple[list[float | None], float]:
    place = np.searchsorted(begins_s, edges[:-1], side="left")
    parts = np.split(values, place[1:])
    known = [part for part in parts if len(part) >= MIN_GAPS]
    found = [measure(part) if len(part) >= MIN_GAPS else None for part in parts]
    if len(values) < MIN_GAPS:
        return found, 1.0
    if measure is cv_of or not known:
        return found, measure(values)
    return found, _bounded(float(np.sqrt(np.mean([measure(part) ** 2 for part in known]))))


def _cv_of_counts(counts: FloatColumn) -> float:
    mean = float(counts.mean())
    return _bounded(float(np.sqrt(counts.var(ddof=1) / mean))) if mean and len(counts) > 1 else 1.0


def cv_of(gaps: FloatColumn) -> float:
    """Standard deviation over mean; 1 where there is none."""
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return _bounded(float(gaps.std()) / mean) if mean else 1.0


def _bounded(cv: float) -> float:
    """Within what a scenario may say."""
    return rounded(min(max(cv, 0.001), 100.0))


def rounded(value: float) -> float:
    """Six digits."""
    return float(f"{value:.6g}")
