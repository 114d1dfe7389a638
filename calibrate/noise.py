"""How steady the machine was: within a run, from one run to the next, and from the beginning of a run to its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median

import numpy as np

from calibrate.clock import Clock
from calibrate.fit import point_medians, point_of
from calibrate.grid import Point
from simserve.step_time.profile_schema import Drift, Noise, Sample

PRIOR_SHARED = 0.08  # between runs of one CPU, 5 to 15 % were seen: shared caches, memory placement, clock rates
PRIOR_RUNS = 2  # how many measured differences between runs the prior weighs as much as
_MAD_TO_SIGMA = 1.4826  # a normal distribution's standard deviation over its median absolute deviation


def make_noise(samples: Sequence[Sample], clock: Clock) -> Noise:
    """The noise of a measurement of one or more sessions, each a process of its own.

    Between runs, what all points share is estimated from the median ratio of each later session to the first, pooled
    with a prior since a few sessions tell little of it; what each point has of its own, from how its ratio deviates.
    """
    groups = [point_medians(_of_session(samples, session), clock) for session in _sessions(samples)]
    first, later = groups[0], groups[1:]
    shifts, deviations = [], []
    for again in later:
        ratios = [float(np.log(again[point] / first[point])) for point in again if point in first]
        if ratios:
            shifts.append(median(ratios))
            deviations += [ratio - shifts[-1] for ratio in ratios]
    prior = PRIOR_RUNS * PRIOR_SHARED**2
    shared = ((prior + sum(shift**2 / 2 for shift in shifts)) / (PRIOR_RUNS + len(shifts))) ** 0.5
    return Noise(
        within_run=_within(samples, clock),
        shared=shared,
        per_point=_MAD_TO_SIGMA * median(map(abs, deviations)) / 2**0.5 if deviations else 0.0,
        num_sessions=1 + len(shifts),
        basis=_basis(shifts),
    )


def make_drift(samples: Iterable[Sample], clock: Clock) -> Drift | None:
    """The drift of the anchor over the first session; ``None`` with fewer than two visits."""
    visits = [sample for sample in samples if sample.anchor and sample.session == 0]
    visits = [sample for sample in visits if not sample.dirty] or visits
    if len(visits) < 2:
        return None
    seconds = [sample.seconds(clock) for sample in visits]
    middle = median(seconds)
    pairs = combinations(range(len(visits)), 2)
    slopes = [(seconds[j] - seconds[i]) / (visits[j].order - visits[i].order) for i, j in pairs]
    return Drift(
        batch_size=visits[0].batch_size,
        num_context_tokens=visits[0].num_context_tokens,
        num_visits=len(visits),
        trend=median(slopes) * (visits[-1].order - visits[0].order) / middle,
        spread=(max(seconds) - min(seconds)) / middle,
    )


def _within(samples: Iterable[Sample], clock: Clock) -> float:
    """From deviations of a point's samples (the clean ones, where it has any) from their mean, freed of what the mean
    itself took away."""
    groups: dict[tuple[int, Point], list[Sample]] = {}
    for sample in samples:
        if not sample.anchor:
            groups.setdefault((sample.session, point_of(sample)), []).append(sample)
    deviations: list[float] = []
    for group in groups.values():
        seconds = [sample.seconds(clock) for sample in ([s for s in group if not s.dirty] or group)]
        if len(seconds) > 1:
            logs = np.log(seconds)
            freed = (len(logs) / (len(logs) - 1)) ** 0.5
            deviations += list(freed * np.abs(logs - np.mean(logs)))
    return _MAD_TO_SIGMA * median(deviations) if deviations else 0.0


def _basis(shifts: Sequence[float]) -> str:
    prior = f"a prior of {PRIOR_SHARED:.0%}"
    if not shifts:
        return f"{prior}, nothing was measured in a second run"
    seen = ", ".join(f"{np.expm1(shift):+.1%}" for shift in shifts)
    return f"{prior} and the same points measured again: {seen}"


def _sessions(samples: Iterable[Sample]) -> list[int]:
    return sorted({sample.session for sample in samples})


def _of_session(samples: Iterable[Sample], session: int) -> list[Sample]:
    return [sample for sample in samples if sample.session == session]
