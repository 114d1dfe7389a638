"""How long a step with drafts takes: the draft's steps and the target's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.request import Batch, Chunk
from simserve.step_time.stretch import Ramp, StepTime, Stretch

Seconds = tuple[float, bool]  # and whether any of it lies outside what was measured


@dataclass(frozen=True)
class Draft:
    """What drafting costs: ``share`` of the steps of ``model``, the target's own (share c) or the draft's (share 1)."""

    model: StepTime
    share: float

    def seconds(self, batch: Batch, num_drafts: int) -> Seconds:
        """The draft's part of a step: ``num_drafts`` decode steps of the batch's decodes, whose contexts grow by one
        from step to step; the first also computes the batch's chunks, which may be all there is."""
        decodes = _plain(batch, ())
        if not batch.chunks:
            return self._decode(decodes, num_drafts)
        first = self.model.ramp(_plain(batch, batch.chunks), 0)
        seconds, outside = self.share * first.first_s, first.extrapolated
        if batch.num_decodes and num_drafts > 1:
            more_s, more_outside = self._decode(_one_further(decodes), num_drafts - 1)
            seconds, outside = seconds + more_s, outside or more_outside
        return seconds, outside

    def _decode(self, decodes: Batch, num_steps: int) -> Seconds:
        stretch = Stretch(self.model, decodes)
        seconds = self.share * stretch.span_s(num_steps)
        return seconds, any(ramp.extrapolated for ramp, _, _ in stretch.pieces(0, num_steps))


class PassTime:
    """Step times of an engine that speculates. ``note`` is a clause for the reader, on drafts and their cost.

    The target's step of B decodes that compute t = γ + 1 tokens each takes what its step of B plain decodes takes, plus
    what t tokens per sequence instead of one add as chunks over the same contexts: *step(decodes) + step(chunks of t) −
    step(chunks of 1)*, beside whatever else is prefilled. The decodes bring the traffic of the caches and an engine's
    work per sequence, the chunks the arithmetic. At t = 1 it is the plain step; by a roofline it is exact (the larger
    of t times the arithmetic and the same traffic). Contexts enter as their mean, in which all models here are linear.

    Rows of the output head (all t tokens of a sequence need it) are in rooflines and operator tables; measured steps of
    a profile have one row per sequence, so there those of verified drafts are missing: worth the head's share of the
    weights where a step is bound by arithmetic, and nothing where it is bound by memory.

    Batches of one token per decode take what they take without speculation.
    """

    def __init__(self, target: StepTime, draft: Draft, note: str) -> None:
        self._target = target
        self._draft = draft
        models = target, draft.model
        self.needs_max_decode_context = any(getattr(model, "needs_max_decode_context", False) for model in models)
        calibrated = all(model.source.calibrated for model in models)
        self.source = replace(target.source, calibrated=calibrated, note=f"{target.source.note.rstrip('.')}; {note}")

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """The ramp that step number ``step`` (from 0) of a stretch of ``batch`` begins; for a pass that one step."""
        if batch.tokens_per_decode == 1:
            return self._target.ramp(batch, step)
        target_s, target_outside = self._verify(batch)
        draft_s, draft_outside = self._draft.seconds(batch, batch.tokens_per_decode - 1)
        return Ramp(target_s + draft_s, 0.0, 1, target_outside or draft_outside)

    def _verify(self, batch: Batch) -> Seconds:
        plain = self._target.ramp(_plain(batch, batch.chunks), 0)
        if not batch.num_decodes:
            return plain.first_s, plain.extrapolated
        several = self._target.ramp(_as_chunks(batch, batch.tokens_per_decode), 0)
        one = self._target.ramp(_as_chunks(batch, 1), 0)
        more_s = max(0.0, several.first_s - one.first_s)  # noisy tables may fall
        return plain.first_s + more_s, plain.extrapolated or several.extrapolated


def _plain(batch: Batch, chunks: tuple[Chunk, ...]) -> Batch:
    """The shape of a step with one token per decode."""
    return Batch(chunks, batch.num_decodes, batch.decode_context_tokens, max_decode_context=batch.max_decode_context)


def _as_chunks(batch: Batch, num_tokens: int) -> Batch:
    """The batch with every decode as a chunk of ``num_tokens`` over the decodes' mean context."""
    num_decodes = batch.num_decodes
    context, rest = divmod(batch.decode_context_tokens, num_decodes)
    longer, others = (Chunk(num_tokens, context + 1),) * rest, (Chunk(num_tokens, context),) * (num_decodes - rest)
    return Batch(batch.chunks + longer + others, num_extra_rows=num_decodes * (num_tokens - 1))


def _one_further(decodes: Batch) -> Batch:
    """The next step of a batch of decodes."""
    context, longest = decodes.decode_context_tokens + decodes.num_decodes, decodes.max_decode_context
    return replace(decodes, decode_context_tokens=context, max_decode_context=longest + 1 if longest else 0)
