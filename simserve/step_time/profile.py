"""Step times from a measured profile (``profile_schema``): prefill over (new tokens, context), decode over (batch
size, context), and a composition of the two where one step does both."""

from __future__ import annotations

from simserve.request import Batch
from simserve.step_time.profile_schema import Profile, Provenance, Table
from simserve.step_time.source import MeasuredPoint, StepTimeSource
from simserve.step_time.stretch import Ramp
from simserve.step_time.surface import Surface


class ProfileStepTime:
    """How long a step takes on the device of ``profile``.

    - A decode of B sequences takes T_dec(B, mean context): attention is linear in context, so only the mean matters.
    - Prefills of n_i new tokens over c_i cached ones, packed into one forward of Q = Σ n_i tokens, take T_pre(Q, C)
      with C such that as many (query, key) pairs are attended: Q·C + Q²/2 = Σ (n_i·c_i + n_i²/2). Several short
      prompts attend to less than one long prompt, so C may lie between −Q/2 and 0: there the measured slope goes on.
    - A mixed step takes T_pre(Q + B, C) with each decode counted as a chunk of one token over the smallest context,
      plus what the decodes' real context costs above that, T_dec(B, mean) − T_dec(B, smallest). This is a composition,
      not a measurement; measured mixed steps would refine it.

    All three are piecewise linear in the step number, hence exact ramps.
    """

    def __init__(self, profile: Profile) -> None:
        self.source = _source(profile)
        self._prefill = Surface(profile.prefill, below="linear")
        self._decode = Surface(profile.decode)
        self._pairs_per_decode = self._decode.min_context + 0.5

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """The ramp that step number ``step`` (from 0) of a stretch of ``batch`` begins."""
        num_decodes = batch.num_decodes
        if not batch.chunks:
            return self._decode.curve(num_decodes).ramp(batch.decode_context_tokens / num_decodes + step, 1.0)
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
        return Ramp(
            prefill.first_s + decode.first_s,
            prefill.slope_s + decode.slope_s,
            min(prefill.num_steps, decode.num_steps),
            prefill.extrapolated or decode.extrapolated,
        )


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
        note=_note(made),
        points=tuple(points),
        digest=profile.digest,
    )


def _note(made: Provenance) -> str:
    """One sentence: what was measured where, and what its steps do not hold."""
    threads = f"{made.threads} thread{'s' * (made.threads != 1)}" if made.threads else None
    attention = f"{made.attention} attention" if made.attention else None
    clock = f"{made.clock.replace('_', ' ')} clock" if made.origin != "imported" else None
    how = ", ".join(part for part in (made.model, made.dtype, attention, threads, clock) if part)
    source = f" ({made.source})" if made.source else ""
    return (
        f"{_VERBS[made.origin]} {made.date} on {made.device_name}{source}: {how}; {_LACKS[made.origin]}"
        "packed prefills and mixed steps are compositions"
    )


def _points(phase: str, table: Table) -> list[MeasuredPoint]:
    points = []
    for row in table.rows:
        for context, seconds in zip(row.contexts, row.seconds, strict=True):
            if phase == "prefill":
                points.append(MeasuredPoint("prefill", 1, row.row, context, seconds))
            else:
                points.append(MeasuredPoint("decode", row.row, 1, context, seconds))
    return points
