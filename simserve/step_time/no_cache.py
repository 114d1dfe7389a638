"""Steps without a KV cache from what a profile measured: whole sequences, computed anew each time.

A profile times the forward of one whole sequence at several lengths. A step of several sequences was not timed; it
takes what the prefill table says of their tokens and (query, key) pairs over an empty context (``ComposedSteps``),
times what the whole forward of as many tokens takes against the prefill of as many. So a sequence alone takes exactly
what was measured, and lengths between the measured ones follow the finer prefill table. The ratio runs linearly in the
logarithm of the tokens, and is held at the nearest measured length outside; steps there are flagged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from simserve.request import Batch, Chunk
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.mixed import place
from simserve.step_time.profile_samples import Clock
from simserve.step_time.profile_schema import NoCacheTable, Profile, Sample
from simserve.step_time.source import StepTimeSource
from simserve.step_time.stretch import Ramp


class NoCacheSteps:
    """Steps of batches that recompute; by ``whole`` forwards, or without any as prefills over an empty context."""

    def __init__(self, steps: ComposedSteps, whole: NoCacheTable | None) -> None:
        self._steps = steps
        self._lengths = whole.num_tokens if whole else ()
        self._logs = [math.log(length) for length in self._lengths]
        seconds = whole.seconds if whole else ()
        self._ratios = [each / self._prefill(n) for n, each in zip(self._lengths, seconds, strict=True)]

    def ramp(self, batch: Batch) -> Ramp:
        """One step of ``batch`` as it stands."""
        composed = self._steps.ramp(batch, 0)._replace(slope_s=0.0, num_steps=1)
        if not self._ratios:
            return composed
        num_tokens = batch.num_batched_tokens
        i, j, share = place(self._logs, math.log(num_tokens))
        ratio = (1 - share) * self._ratios[i] + share * self._ratios[j]
        outside = not self._lengths[0] <= num_tokens <= self._lengths[-1]
        return composed._replace(first_s=ratio * composed.first_s, extrapolated=composed.extrapolated or outside)

    def _prefill(self, num_tokens: int) -> float:
        return self._steps.ramp(Batch((Chunk(num_tokens, 0),)), 0).first_s


def fit_no_cache(samples: Iterable[Sample], clock: Clock) -> NoCacheTable | None:
    """Medians of whole forwards without a cache, over the clean samples of each length (all where none is clean); None
    if there are none."""
    groups = no_cache_readings(samples, clock)
    if not groups:
        return None
    lengths = tuple(sorted(groups))
    return NoCacheTable(num_tokens=lengths, seconds=tuple(median(groups[length]) for length in lengths))


def no_cache_readings(samples: Iterable[Sample], clock: Clock) -> dict[int, list[float]]:
    """The seconds that count of every measured length."""
    groups: dict[int, list[tuple[bool, float]]] = {}
    for sample in samples:
        if sample.phase == "no_cache" and sample.batch_size == 1 and not sample.held_out:
            groups.setdefault(sample.num_new_tokens, []).append((sample.dirty, sample.seconds(clock)))
    return {length: _clean(readings) for length, readings in groups.items()}


def no_cache_table(profile: Profile) -> NoCacheTable | None:
    """The whole forwards that a profile holds, its overhead per step included; from its samples where the file is
    older than their table. None where none were timed."""
    table = bare_forwards(profile)
    if table is None or profile.overhead is None:
        return table
    more = profile.overhead.constant_s + profile.overhead.per_sequence_s
    return NoCacheTable(num_tokens=table.num_tokens, seconds=tuple(seconds + more for seconds in table.seconds))


def bare_forwards(profile: Profile) -> NoCacheTable | None:
    """The same without the overhead."""
    return profile.no_cache or fit_no_cache(profile.samples, profile.provenance.clock)


def without_cache(source: StepTimeSource, whole: NoCacheTable | None) -> StepTimeSource:
    """``source``, whose note says where steps without a cache come from."""
    how = "steps without a cache are prefills of whole sequences over an empty context"
    if whole is not None:
        lengths = whole.num_tokens
        how = (
            f"steps without a cache are whole forwards measured at {len(lengths)} lengths of {lengths[0]:,}–"
            f"{lengths[-1]:,} tokens, of several sequences at once composed by their tokens and pairs"
        )
    return replace(source, note=f"{source.note.rstrip('.')}; {how}")


def _clean(readings: list[tuple[bool, float]]) -> list[float]:
    return [seconds for dirty, seconds in readings if not dirty] or [seconds for _, seconds in readings]
