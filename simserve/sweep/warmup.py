"""Where the warm-up ends: MSER-5 for long generated workloads, a share that the user gives, or nothing.

MSER-5 (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997; in
batches of five as of White, Cobb and Spratt, WSC 2000): cut where the squared standard error of the mean of what is
left is least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.distributions import FloatColumn
from simserve.request import IntColumn
from simserve.scenario import GeneratedWorkload
from simserve.simulate import Prepared

MIN_REQUESTS = 500  # fewer are as a whole what the user asked about (a given batch of requests), not a steady state
BATCH = 5


@dataclass(frozen=True)
class WarmupRule:
    """``share`` of the requests to cut; None: by MSER-5. ``steady`` says whether a steady state is what is asked for,
    so that rates stop at the last arrival; otherwise the run as a whole is, and they stop at the last completion."""

    share: float | None
    steady: bool


def warmup_rule(warmup: str | float, prepared: Prepared) -> WarmupRule:
    """The rule for a workload: ``warmup`` is "auto" or a share."""
    if warmup != "auto":
        return WarmupRule(float(warmup), float(warmup) > 0)
    is_long = len(prepared.workload.table) >= MIN_REQUESTS
    is_steady = is_long and isinstance(prepared.scenario.workload, GeneratedWorkload)
    return WarmupRule(None, True) if is_steady else WarmupRule(0.0, False)


def num_warmup(rule: WarmupRule, latencies_s: FloatColumn, arrival_ns: IntColumn) -> int:
    """How many of the first requests to cut; at most half of them.

    ``latencies_s`` and ``arrival_ns`` are of requests in order of arrival; unanswered ones (NaN) take no part in
    MSER-5. Everybody at once has no warm-up.
    """
    n = len(latencies_s)
    if not n or arrival_ns[0] == arrival_ns[-1]:
        return 0
    if rule.share is not None:
        return min(int(rule.share * n), n // 2) if rule.steady else 0
    answered = np.flatnonzero(~np.isnan(latencies_s))
    cut = BATCH * mser_batches(latencies_s[answered], BATCH)
    return min(int(answered[cut]), n // 2) if 0 < cut < len(answered) else 0


def mser_batches(values: FloatColumn, batch: int = BATCH) -> int:
    """The number of batches that MSER cuts from the front of a series, at most half of them; the fewest of equals.

    With k batch means Y, it is the d that minimises Σ_{i > d} (Y_i − mean of those)² / (k − d)².
    """
    k = len(values) // batch
    if k < 2:
        return 0
    means = values[: k * batch].reshape(k, batch).mean(axis=1)
    means = means - means.mean()  # so that the difference of squares below does not cancel
    num_left = np.arange(k, 0, -1)
    sums, squares = np.cumsum(means[::-1])[::-1], np.cumsum((means**2)[::-1])[::-1]
    errors = (squares - sums**2 / num_left) / num_left.astype(np.float64) ** 2
    return int(np.argmin(errors[: k // 2 + 1]))
