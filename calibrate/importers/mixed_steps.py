"""Mixed steps that an importer read: a correction of their composition, and its error on steps it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.fit_mixed import fit_mixed
from calibrate.grid import Point
from simserve.request import Batch
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.profile_schema import MixedCorrection, Sample, Table

HELD_OUT_EVERY = 5


@dataclass(frozen=True)
class MixedSteps:
    """The correction, relative errors of the steps held out, their errors without correction, and the raw samples."""

    correction: MixedCorrection | None
    errors: list[float]
    bare_errors: list[float]
    samples: list[Sample]

    @property
    def words(self) -> list[str]:
        """A note for the reader, if there were any."""
        if not self.errors:
            return []
        bare, error = (sum(errors) / len(errors) for errors in (self.bare_errors, self.errors))
        return [
            f"mixed steps: every {HELD_OUT_EVERY}th was held out; composed of prefill and decode they are {bare:.1%} "
            f"off on average, corrected by the others {error:.1%}"
        ]


def fit_mixed_steps(
    mixed: Sequence[tuple[Batch, float]], prefill: Table, decode: Table, first_order: int
) -> MixedSteps:
    """Fit all but every fifth of ``mixed`` (each one chunk beside decodes) and predict the rest."""
    held = {i for i in range(len(mixed)) if i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1}
    fitted = {_point(batch): seconds for i, (batch, seconds) in enumerate(mixed) if i not in held}
    bare = ComposedSteps(prefill, decode)
    correction = fit_mixed(fitted, bare)
    corrected = ComposedSteps(prefill, decode, correction)
    samples = [_sample(batch, seconds, first_order + i, i in held) for i, (batch, seconds) in enumerate(mixed)]
    unseen = [mixed[i] for i in sorted(held)]
    return MixedSteps(correction, _errors(corrected, unseen), _errors(bare, unseen), samples)


def _errors(steps: ComposedSteps, unseen: Sequence[tuple[Batch, float]]) -> list[float]:
    return [abs(steps.ramp(batch, 0).first_s / seconds - 1) for batch, seconds in unseen]


def _point(batch: Batch) -> Point:
    new, context = batch.chunks[0]
    beside = batch.num_decodes, batch.decode_context_tokens // batch.num_decodes
    return Point("mixed", 1, new, context, False, *beside)


def _sample(batch: Batch, seconds: float, order: int, held_out: bool) -> Sample:
    new, context = batch.chunks[0]
    return Sample(
        phase="mixed",
        batch_size=1,
        num_new_tokens=new,
        num_context_tokens=context,
        wall_s=seconds,
        cpu_s=None,
        cuda_s=None,
        other_cpus=None,
        order=order,
        held_out=held_out,
        dirty=False,
        num_decodes=batch.num_decodes,
        num_decode_context_tokens=batch.decode_context_tokens // batch.num_decodes,
    )
