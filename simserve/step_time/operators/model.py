"""Step times summed from measured operators: the layers times one layer's, and what runs once a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simserve.model_spec import ModelSpec
from simserve.request import Batch
from simserve.step_time.operators.attention import AttentionTables
from simserve.step_time.operators.captured import CapturedSizes
from simserve.step_time.operators.held_out import mean_error
from simserve.step_time.operators.packing import packed
from simserve.step_time.operators.tables import OperatorTables
from simserve.step_time.source import MeasuredPoint, StepTimeSource
from simserve.step_time.stretch import Ramp

_MOST_ROWS = 24  # of either table among the points of a report


class OperatorStepTime:
    """How long a step takes by operator tables.

    - Operators over tokens and over sequences see the step's totals, one row per sequence and for each verified draft.
    - Decodes attend as so many of their mean context would, and where the tables say what unequal contexts cost
      (``skew``), a measured share of the way to so many of the longest; ``unequal_contexts=False`` leaves that out.
    - The prefills of a step, n_i new tokens over c_i cached ones, attend as one chunk of Q = Σ n_i tokens does over
      the context C at which it attends to as many (query, key) pairs: Q·C + Q²/2 = Σ (n_i·c_i + n_i²/2). No table has
      such steps, but a chunk does exactly the work of its parts, each over those before it, so measured chunks tell how
      parts compose. Four parts of at least 512 tokens together, on an RTX 4090, an RTX PRO 6000 and Vidur's A100: equal
      pairs, with the row of Q tokens left out, are off by 8, 4 and 2 % of attention; the sum of the parts by 27, 49 and
      17 %; Q tokens over their mean context by 28, 24 and 12 %; Vidur's own rule (√Σn², Σc) by 42, 57 and 14 %.
    - ``host_overhead_s`` is added to every step: what the user says the engine's own work takes.
    - An engine that captures graphs up to ``max_captured_tokens`` pads steps to captured sizes: operators over tokens
      run at them, and decodes alone are split by as many rows as the graph has. Attention does no work for padding.

    What stays unknown, and its worth by LLMServingSim's tables alone, in Llama-3.1-8B steps of decodes over 1,300
    tokens each: 32 of them on an RTX 4090 (25 ms), 128 on an RTX PRO 6000 (28 ms).

    - Unequal contexts: with the longest three times the mean, 6.6 and 3.6 % of the step.
    - Tables of eager mode for an engine that captures graphs and fuses: norms, activation and rotary embedding, of
      which fusing can save a part, are 1.2 and 1.4 %; a microsecond between a layer's ten kernels, which the tables
      lack, adds 1.3 and 1.1 %. Of either sign and one size: left out.
    - Host overhead: 4.0 and 3.5 % for each millisecond that asynchronous scheduling does not hide; 0 unless declared.

    A repeated decision of prefills alone or of decodes alone is piecewise linear in the step number, hence exact ramps;
    one of both is bilinear in two contexts that grow, so every step of it is a ramp of its own.
    """

    def __init__(
        self,
        tables: OperatorTables,
        model: ModelSpec,
        tensor_parallel: int = 1,
        host_overhead_s: float = 0.0,
        unequal_contexts: bool = True,
        max_captured_tokens: int | None = None,
    ) -> None:
        self._tables = tables
        self._captured = CapturedSizes(max_captured_tokens)
        self._skew = tables.skew if unequal_contexts else None
        self.needs_max_decode_context = self._skew is not None
        self._num_layers = model.num_layers
        self._host_overhead_s = host_overhead_s
        self._attention: AttentionTables = tables.attention
        self._rest: dict[tuple[int, int], tuple[float, bool]] = {}
        self.source = self._source(model, tensor_parallel)

    def ramp(self, batch: Batch, step: int) -> Ramp:
        """The ramp that step number ``step`` (from 0) of a stretch of ``batch`` begins."""
        rest_s, outside = self._without_attention(batch.num_batched_tokens, batch.num_seqs + batch.num_extra_rows)
        attention = self._attention_ramp(batch, step)
        layers = self._num_layers
        return Ramp(
            rest_s + layers * attention.first_s,
            layers * attention.slope_s,
            attention.num_steps,
            outside or attention.extrapolated,
        )

    def _without_attention(self, num_tokens: int, num_seqs: int) -> tuple[float, bool]:
        """Everything in a step that its contexts do not change."""
        found = self._rest.get((num_tokens, num_seqs))
        if found is None:
            tables, padded = self._tables, self._captured.padded(num_tokens)
            layer, step, rows = tables.layer.at(padded), tables.step.at(padded), tables.rows.at(num_seqs)
            seconds = self._num_layers * layer[0] + step[0] + rows[0] + self._host_overhead_s
            found = seconds, layer[1] or (step[0] > 0 and step[1]) or (rows[0] > 0 and rows[1])
            self._rest[num_tokens, num_seqs] = found
        return found

    def _attention_ramp(self, batch: Batch, step: int) -> Ramp:
        """One layer's attention. The share of the longest context is that of the decision's first step throughout, so
        that a blend of two ramps is a ramp."""
        mean = batch.decode_context_tokens / batch.num_decodes + step if batch.num_decodes else 0.0
        at_mean = self._attention_over(batch, step, mean)
        longest = batch.max_decode_context + step
        if self._skew is None or not batch.num_decodes or longest <= mean:
            return at_mean
        num_tokens, context, _ = packed(batch) if batch.chunks else (0, 0.0, 0.0)
        alpha = self._skew.alpha(batch.num_decodes, num_tokens, context, self._captured.padded(batch.num_decodes))
        at_longest = self._attention_over(batch, step, longest)
        return Ramp(
            at_mean.first_s + alpha * (at_longest.first_s - at_mean.first_s),
            at_mean.slope_s + alpha * (at_longest.slope_s - at_mean.slope_s),
            min(at_mean.num_steps, at_longest.num_steps),
            at_mean.extrapolated or at_longest.extrapolated,
        )

    def _attention_over(self, batch: Batch, step: int, decode_context: float) -> Ramp:
        """One layer's attention, every decode over ``decode_context`` cached tokens at this step."""
        num_decodes = batch.num_decodes
        if not batch.chunks:
            return self._attention.decode_rows.curve(num_decodes).ramp(decode_context, 1.0)
        num_tokens, context, growth = packed(batch)
        context += growth * step
        if num_decodes and self._attention.mixed_grid is not None:
            seconds, outside = self._attention.mixed_grid.at(num_tokens, context, num_decodes, decode_context)
            return Ramp(seconds, 0.0, 1, outside)
        prefill = self._attention.prefill_rows.curve(num_tokens).ramp(context, growth)
        if not num_decodes:
            return prefill
        decode = self._attention.decode_rows.curve(num_decodes).ramp(decode_context, 1.0)
        return Ramp(
            prefill.first_s + decode.first_s,
            prefill.slope_s + decode.slope_s,
            min(prefill.num_steps, decode.num_steps),
            prefill.extrapolated or decode.extrapolated,
        )

    def _source(self, model: ModelSpec, tensor_parallel: int) -> StepTimeSource:
        origin, host_ms, sizes = self._tables.origin, 1e3 * self._host_overhead_s, self._captured.sizes
        when = f" {origin.date}" if origin.date else ""
        note = (
            f"operators of one layer measured{when} on {origin.device} by {origin.profiler}, summed over the "
            f"{model.num_layers} layers of {model.name}; {origin.missing} are not in them; decodes attend as at their "
            f"mean context{self._beyond_mean()}, several prefills of a step as one chunk of as many tokens and pairs; "
            f"{f'steps of up to {sizes[-1]} tokens are padded to captured sizes; ' if sizes else ''}"
            f"host overhead {host_ms:g} ms a step, as the scenario declares"
        )
        return StepTimeSource(
            name=f"{model.name}-{'-'.join(origin.device.lower().split())}-tp{tensor_parallel}-operators",
            kind="operators",
            device=origin.device if tensor_parallel == 1 else f"{tensor_parallel} × {origin.device}",
            calibrated=True,
            holdout_mape=mean_error(self._tables, model.num_layers),
            note=note,
            points=tuple(self._points()),
            digest=origin.digest,
        )

    def _beyond_mean(self) -> str:
        if self._skew is not None:
            return " and a measured share of what the longest costs beyond it"
        if self._tables.skew is None:
            return ""
        who = "scenario declares" if self._tables.uses_skew else "tables' meta.yaml says"
        return f", what the longest costs beyond it left out as the {who}"

    def _points(self) -> Iterator[MeasuredPoint]:
        """Steps at measured attention shapes, for the chart; of a fine grid some rows and contexts."""
        tables = self._attention
        for q, c, seconds in _thinned(tables.tokens, tables.contexts, tables.prefill):
            rest_s, _ = self._without_attention(int(q), 1)
            yield MeasuredPoint("prefill", 1, int(q), int(c), rest_s + self._num_layers * seconds)
        for n, c, seconds in _thinned(tables.decodes, tables.decode_contexts, tables.decode):
            rest_s, _ = self._without_attention(int(n), int(n))
            yield MeasuredPoint("decode", int(n), 1, int(c), rest_s + self._num_layers * seconds)


def _thinned(rows: Sequence[float], contexts: Sequence[float], values: object) -> Iterator[tuple[float, float, float]]:
    import numpy as np

    grid = np.asarray(values)
    for i in _spread(rows):
        for j in _spread(contexts):
            if np.isfinite(grid[i, j]):
                yield rows[i], contexts[j], float(grid[i, j])


def _spread(axis: Sequence[float]) -> list[int]:
    """All places of a short axis; of a long one those nearest to a geometric series, ends included."""
    if len(axis) <= _MOST_ROWS:
        return list(range(len(axis)))
    first, last = max(1.0, axis[0]), axis[-1]
    wanted = [axis[0], *(first * (last / first) ** (i / (_MOST_ROWS - 1)) for i in range(_MOST_ROWS))]
    return sorted({min(range(len(axis)), key=lambda i: abs(axis[i] - value)) for value in wanted})
