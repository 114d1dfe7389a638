"""One layer's attention as it was measured: seconds of prefills, of decodes, and of both in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simserve.step_time.operators.grid import Values
from simserve.step_time.operators.mixed_grid import MixedGrid
from simserve.step_time.operators.rows import DecodeRows, PrefillRows

Axis = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class AttentionTables:
    """``prefill`` over (``tokens``, ``contexts``), ``decode`` over (``decodes``, ``decode_contexts``), ``mixed`` over
    ``mixed_axes``, all four in that order, or None where prefills and decodes run one after another. NaN where nothing
    was measured; every place of an axis has some measurement.
    """

    tokens: Axis
    contexts: Axis
    prefill: Values
    decodes: Axis
    decode_contexts: Axis
    decode: Values
    mixed: Values | None = None
    mixed_axes: tuple[Axis, Axis, Axis, Axis] = ((), (), (), ())

    @cached_property
    def prefill_rows(self) -> PrefillRows:
        return PrefillRows(self.tokens, self.contexts, self.prefill)

    @cached_property
    def decode_rows(self) -> DecodeRows:
        return DecodeRows(self.decodes, self.decode_contexts, self.decode)

    @cached_property
    def mixed_grid(self) -> MixedGrid | None:
        if self.mixed is None:
            return None
        return MixedGrid(self.mixed_axes, self.mixed)
