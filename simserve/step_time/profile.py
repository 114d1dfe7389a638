"""Step times from a measured profile, and who measured it, for the reader of a report."""

from __future__ import annotations

from functools import cached_property

from simserve.request import Batch
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.no_cache import NoCacheSteps, no_cache_table
from simserve.step_time.profile_schema import NoCacheTable, Profile, Table
from simserve.step_time.source import MeasuredPoint, StepTimeSource
from simserve.step_time.stretch import Ramp


class ProfileStepTime:
    """How long a step takes on the device of ``profile``, by the rules of ``ComposedSteps``."""

    def __init__(self, profile: Profile) -> None:
        self.source = _source(profile)
        tables = profile.prefill, profile.decode, profile.mixed, profile.repeated
        self._steps = ComposedSteps(*tables, one_mask=profile.one_mask)
        self._profile = profile

    @cached_property
    def no_cache_table(self) -> NoCacheTable | None:
        """The whole forwards that the profile holds; without any, steps without a cache are prefills."""
        return no_cache_table(self._profile)

    @cached_property
    def _without_cache(self) -> NoCacheSteps:
        return NoCacheSteps(self._steps, self.no_cache_table)

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """The ramp that step number ``step`` (from 0) of a stretch of ``batch`` begins."""
        if batch.recomputes:
            return self._without_cache.ramp(batch.at_step(step))
        return self._steps.ramp(batch, step)


_VERBS = {"forward": "measured", "engine": "measured", "server": "measured from outside", "imported": "imported"}
_LACKS = {
    "forward": "bare forwards, an engine's own work per step comes on top; ",
    "engine": "",
    "server": "",
    "imported": "",
}


def _source(profile: Profile) -> StepTimeSource:
    made = profile.provenance
    points = [
        *_points("prefill", profile.prefill),
        *_points("decode", profile.decode),
    ]
    return StepTimeSource(
        name=profile.name,
        kind="profile",
        device=made.device_name,
        calibrated=True,
        holdout_mape=profile.held_out.all.mean,
        note=_note(profile),
        points=tuple(points),
        digest=profile.digest,
    )


def _note(profile: Profile) -> str:
    """One sentence: what was measured where, and what its steps do not hold."""
    made, mixed = profile.provenance, profile.mixed
    threads = f"{made.threads} thread{'s' * (made.threads != 1)}" if made.threads else None
    attention = f"{made.attention} attention" if made.attention else None
    clock = f"{made.clock.replace('_', ' ')} clock" if made.origin != "imported" else None
    how = ", ".join(part for part in (made.model, made.precision, attention, threads, clock) if part)
    source = f" ({made.source})" if made.source else ""
    compositions = "packed prefills and mixed steps are compositions"
    if mixed is not None:
        compositions = (
            "packed prefills are compositions, and so are mixed steps, corrected by "
            f"{mixed.num_points} measured ones ({mixed.num_new_tokens[0]}–{mixed.num_new_tokens[-1]} tokens beside "
            f"{mixed.num_decodes[0]}–{mixed.num_decodes[-1]} decodes)"
        )
    if profile.one_mask:
        compositions += "; steps with prefills attend as one row under one mask"
    if profile.repeated is not None:
        low, high = min(profile.repeated.ratios), max(profile.repeated.ratios)
        compositions += f"; decodes that follow their own kind take {low:.2f} to {high:.2f} of the first, as measured"
    lacks = _LACKS[made.origin]
    if profile.overhead is not None:
        lacks = f"bare forwards with an overhead per step fitted on {profile.overhead.source}; "
    return f"{_VERBS[made.origin]} {made.date} on {made.device_name}{source}: {how}; {lacks}" + compositions


def _points(phase: str, table: Table) -> list[MeasuredPoint]:
    points = []
    for row in table.rows:
        for context, seconds in zip(row.contexts, row.seconds, strict=True):
            if phase == "prefill":
                points.append(MeasuredPoint("prefill", 1, row.row, context, seconds))
            else:
                points.append(MeasuredPoint("decode", row.row, 1, context, seconds))
    return points
