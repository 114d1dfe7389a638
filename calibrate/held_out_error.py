"""How wrong a fit is on steps that it has not seen, and how far such steps lie from themselves measured again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from calibrate.fit import make_table
from calibrate.fit_mixed import batch_of, fit_composition
from calibrate.fit_repeated import fit_ratios
from calibrate.grid import Point
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.profile_schema import HeldOut, HeldOutError

Medians = Mapping[Point, float]

_KINDS: dict[str, Callable[[Point], bool]] = {
    "prefill": lambda point: point.phase == "prefill" and point.in_table,
    "decode": lambda point: point.phase == "decode" and point.in_table,
    "mixed": lambda point: point.phase == "mixed",
    "packed": lambda point: point.phase == "prefill" and point.batch_size > 1,
    "unequal": lambda point: point.phase == "decode" and point.context_spread > 0,
    "repeated": lambda point: point.num_repeats > 0,
    "all": lambda point: point.phase != "no_cache" and not point.num_repeats,
}


def fit_steps(medians: Medians) -> ComposedSteps:
    """Step times by the tables and the mixed correction of ``medians``, what was held out left out."""
    prefill, decode = make_table(medians, "prefill"), make_table(medians, "decode")
    fitted = fit_composition(medians, prefill, decode)
    return ComposedSteps(prefill, decode, fitted.mixed, fit_ratios(medians, decode), one_mask=fitted.one_mask)


def held_out_error(medians: Medians, again: Medians | None = None, first: Medians | None = None) -> HeldOut:
    """Predict the points held out and compare, kind by kind; ``again`` are medians of the same points from another
    run, whose relative distance from the ``first`` (by default ``medians``) is the ``noise`` beside the error."""
    return compare(fit_steps(medians), medians, again, first)


def compare(
    steps: ComposedSteps, medians: Medians, again: Medians | None = None, first: Medians | None = None
) -> HeldOut:
    """As ``held_out_error``, with step times that were fitted to something else."""
    again, first = again or {}, first or medians
    held_out = {point: seconds for point, seconds in medians.items() if point.held_out}
    errors, noises = {}, {}
    for point, seconds in held_out.items():
        errors[point] = abs(steps.ramp(batch_of(point), point.num_repeats).first_s - seconds) / seconds
        if point in again and point in first:
            noises[point] = abs(again[point] - first[point]) / first[point]
    summaries = {
        kind: _summary([errors[p] for p in errors if belongs(p)], [noises[p] for p in noises if belongs(p)])
        for kind, belongs in _KINDS.items()
    }
    return HeldOut(**summaries)


def _summary(errors: list[float], noises: list[float]) -> HeldOutError:
    noise = float(np.mean(noises)) if noises else None
    if not errors:
        return HeldOutError(num_points=0, mean=None, p95=None, max=None, noise=noise)
    p95 = float(np.percentile(errors, 95))
    return HeldOutError(num_points=len(errors), mean=float(np.mean(errors)), p95=p95, max=max(errors), noise=noise)
