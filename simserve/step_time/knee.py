"""The knee of a batch curve, and how sure the samples are of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

NUM_DRAWS = 1000
LEVEL = 0.9  # of the draws lie inside the interval


class KneeInterval(NamedTuple):
    """The knee of the medians, the interval that holds 90 % of bootstrap draws, and each batch's share of the draws;
    no shares where nothing was repeated, which leaves nothing to draw."""

    knee: int
    low: int
    high: int
    shares: dict[int, float]


def batch_knee(step_s: Mapping[int, float]) -> int:
    """The largest batch whose incoming doubling still gained at least √2 in throughput, from seconds per decode step at
    each batch size; the smallest batch if no doubling did. ("The first doubling that fails" would say 1 for fp32 on a
    CPU, where a batch of two gains nothing over one.)"""
    passing = [
        batch
        for batch, seconds in step_s.items()
        if batch % 2 == 0 and batch // 2 in step_s and 2 * step_s[batch // 2] / seconds >= math.sqrt(2)
    ]
    return max(passing, default=min(step_s))


def knee_interval(samples: Mapping[int, Sequence[float]], seed: int = 0, draws: int = NUM_DRAWS) -> KneeInterval:
    """Bootstrap the knee: draw as many samples with replacement at every batch size, take medians, find the knee.

    ``samples`` are seconds of single decode steps by batch size, at least one each. The interval covers what repeating
    within this run would change, not what another day or machine would."""
    knee = batch_knee({batch: float(np.median(seconds)) for batch, seconds in sorted(samples.items())})
    if all(len(seconds) == 1 for seconds in samples.values()):
        return KneeInterval(knee, knee, knee, {})
    rng = np.random.default_rng(seed)
    resampled = {
        batch: np.median(rng.choice(np.asarray(seconds, np.float64), (draws, len(seconds))), axis=1)
        for batch, seconds in sorted(samples.items())
    }
    knees = [batch_knee({batch: float(values[i]) for batch, values in resampled.items()}) for i in range(draws)]
    low, high = np.quantile(knees, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    found, counts = np.unique(knees, return_counts=True)
    shares = {int(batch): float(n) / draws for batch, n in zip(found, counts, strict=True)}
    return KneeInterval(knee, int(low), int(high), shares)
