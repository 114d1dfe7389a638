"""What another calibration would have made of a rate: a part of an interval that no replication narrows.

A measured profile can be drawn again from its own samples (``ProfileDraws``). Runs on the same requests, with step
times as measured and as drawn, differ by calibration alone. The spread is taken where a server is as busy as it can be;
step times that are all longer by a share lower every rate by it, so knees and capacities get the same relative spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simserve.knee.probe import Probe
from simserve.knee.study import Ask
from simserve.scenario import ProfileStepTimeConfig
from simserve.tasks.intervals import Interval, calibration_half_width, calibration_sd
from simserve.tasks.task import Measures


def calibration_spread(probe: Probe, load: float | None, replications: int) -> float:
    """The standard deviation, as a share of itself, that calibration gives to throughput at a load (None: everybody at
    once). 0 for step times that nobody measured, where one replication makes no interval, and where it is not asked."""
    is_measured = isinstance(probe.study.variants[probe.variant].step_time, ProfileStepTimeConfig)
    if not (is_measured and probe.study.calibration_noise) or replications < 2:
        return 0.0
    measured, drawn = (
        [_throughput(run) for run in probe.run([Ask(load, r, is_drawn) for r in range(replications)], what)]
        for is_drawn, what in ((False, "as calibrated"), (True, "with noise of calibration"))
    )
    mean = _mean(measured)
    return calibration_sd(measured, drawn) / mean if mean else 0.0


def widened(found: Interval, spread: float) -> Interval:
    """An interval with the noise of calibration in it, in quadrature; ``spread`` as from ``calibration_spread``."""
    value, low, high = found["value"], found["low"], found["high"]
    if value is None or low is None or high is None or spread == 0:
        return found
    calibration = calibration_half_width(spread * abs(value), found["n"])
    below, above = math.hypot(value - low, calibration), math.hypot(high - value, calibration)
    share = 2 * calibration / (below + above) if below + above > 0 else 0.0
    return {"value": value, "low": value - below, "high": value + above, "n": found["n"], "calibration": share}


def _throughput(run: Measures) -> float | None:
    departures: float | None = run["backlogged_rps"]
    return run["requests_per_s"] if departures is None else departures


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else 0.0
