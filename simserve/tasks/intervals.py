"""95 % intervals over replications, and the part of them that is not chance but calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypedDict

import numpy as np

CONFIDENCE = 0.95


class Interval(TypedDict):
    """A mean over ``n`` replications with its 95 % interval, null where there is none. ``calibration`` is the part of
    the half-width that comes from the measured step times, as a share of it: the half-width's square is the sum of the
    squares of that part and of chance, and only chance shrinks with more replications."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    calibration: float


def interval(values: Sequence[float | None], calibration_sd: float = 0.0, num_draws: int | None = None) -> Interval:
    """Student's t over replications, widened in quadrature by ``calibration_half_width``.

    Replications without a value are left out. One has no interval, for its chance is unknown. ``num_draws`` says how
    many draws ``calibration_sd`` is the root mean square of; None, one for each replication that has a value.
    """
    known = [value for value in values if value is not None]
    if not known:
        return {"value": None, "low": None, "high": None, "n": 0, "calibration": 0.0}
    mean = math.fsum(known) / len(known)
    if len(known) < 2:
        return {"value": mean, "low": None, "high": None, "n": 1, "calibration": 0.0}
    chance = t_quantile(len(known) - 1) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    calibration = calibration_half_width(calibration_sd, len(known) if num_draws is None else num_draws)
    half = math.hypot(chance, calibration)
    share = calibration / half if half > 0 else 0.0
    return {"value": mean, "low": mean - half, "high": mean + half, "n": len(known), "calibration": share}


def calibration_half_width(sd: float, num_draws: int) -> float:
    """Half of a 95 % interval of the calibration, whose ``sd`` is the root mean square of ``num_draws`` differences.

    Student's t with as many degrees of freedom: their mean is known to be 0, so none is spent on it. 1.96 would hold
    the truth in 81 % of the cases with two draws and in 91 % with eight.
    """
    return t_quantile(num_draws) * sd if sd else 0.0


def calibration_sd(measured: Sequence[float | None], drawn: Sequence[float | None]) -> float:
    """Root mean square of the differences that a draw of the step times makes, each on the same requests.

    The mean of the differences is not taken off: where a draw moves a metric to one side on average, the measured step
    times are as likely to be off by that. 0 where nothing can be paired.
    """
    pairs = [(a, b) for a, b in zip(measured, drawn, strict=True) if a is not None and b is not None]
    return math.sqrt(math.fsum((b - a) ** 2 for a, b in pairs) / len(pairs)) if pairs else 0.0


@lru_cache
def t_quantile(degrees_of_freedom: int) -> float:
    """Student's t that leaves 2.5 % above it."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))
