"""Any step from measured prefill, decode and mixed steps."""

from __future__ import annotations

from simserve.request import Batch
from simserve.step_time.mixed import corrector
from simserve.step_time.profile_schema import MixedCorrection, Table
from simserve.step_time.repeated import HasRatios, repeater
from simserve.step_time.stretch import Ramp
from simserve.step_time.surface import Surface


class ComposedSteps:
    """How long a step of any batch takes by measured tables.

    - A decode of B sequences takes T_dec(B, mean context): attention is linear in context, so only the mean matters.
      From the second step of a decision on it takes that times the ratio of ``repeated`` at B, where that was measured.
    - Prefills of n_i new tokens over c_i cached ones, packed into one forward of Q = Σ n_i tokens, take T_pre(Q, C)
      with C such that as many (query, key) pairs are attended: Q·C + Q²/2 = Σ (n_i·c_i + n_i²/2). Several short
      prompts attend to less than one long prompt, so C may lie between −Q/2 and 0: there the measured slope goes on.
    - A mixed step takes T_pre(Q + B, C) with each decode counted as a chunk of one token over the smallest context,
      plus what the decodes' real context costs above that, T_dec(B, mean) − T_dec(B, smallest); measured mixed steps
      correct that by a ratio or an addition over (Q, B), where there are any.
    - With ``one_mask`` a step with prefills attends as one row under one mask, every token to the cache of every
      sequence (transformers' paged attention; the mask then hides what is foreign): all its N tokens together take
      T_pre(N, Σ contexts), decodes' contexts included.

    All of them are piecewise linear in the step number, hence exact ramps.
    """

    def __init__(
        self,
        prefill: Table,
        decode: Table,
        mixed: MixedCorrection | None = None,
        repeated: HasRatios | None = None,
        *,
        one_mask: bool = False,
    ) -> None:
        self._prefill = Surface(prefill, below="linear")
        self._decode = Surface(decode)
        self._pairs_per_decode = self._decode.min_context + 0.5
        self._correct = corrector(mixed)
        self._repeat = repeater(repeated)
        self._one_mask = one_mask

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """The ramp that step number ``step`` (from 0) of a stretch of ``batch`` begins."""
        num_decodes = batch.num_decodes
        if not batch.chunks:
            ramp = self._decode.curve(num_decodes).ramp(batch.decode_context_tokens / num_decodes + step, 1.0)
            return self._repeat(ramp, num_decodes, step)
        if self._one_mask:
            return self._in_one_row(batch, step)
        num_tokens, squares, pairs = num_decodes, 0, num_decodes * self._pairs_per_decode
        for new, context in batch.chunks:
            num_tokens += new
            squares += new * new
            pairs += new * context
        growth = squares / num_tokens
        context_0 = (pairs + squares / 2) / num_tokens - num_tokens / 2
        prefill = self._prefill.curve(num_tokens).ramp(context_0 + growth * step, growth)
        if not num_decodes:
            return prefill
        mean = batch.decode_context_tokens / num_decodes + step
        decode = self._decode.increment(num_decodes).ramp(mean, 1.0)
        mixed = Ramp(
            prefill.first_s + decode.first_s,
            prefill.slope_s + decode.slope_s,
            min(prefill.num_steps, decode.num_steps),
            prefill.extrapolated or decode.extrapolated,
        )
        return self._correct(mixed, num_tokens - num_decodes, num_decodes)

    def _in_one_row(self, batch: Batch, step: int) -> Ramp:
        """A step with prefills whose tokens all attend to all cached ones."""
        num_new = sum(new for new, _ in batch.chunks)
        num_tokens, num_decodes = num_new + batch.num_decodes, batch.num_decodes
        cached = batch.decode_context_tokens + sum(context for _, context in batch.chunks)
        row = self._prefill.curve(num_tokens).ramp(float(cached + num_tokens * step), float(num_tokens))
        return self._correct(row, num_new, num_decodes) if num_decodes else row
