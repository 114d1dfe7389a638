"""From measured mixed steps to a correction of the composition of prefill and decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from calibrate.grid import Point
from simserve.request import Batch, Chunk
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.profile_schema import MixedCorrection

Form = Literal["ratio", "added"]
Pair = tuple[float, float]  # measured and composed seconds


def fit_mixed(medians: Mapping[Point, float], composed: ComposedSteps) -> MixedCorrection | None:
    """The correction that the measured mixed steps support, over new tokens and decodes; ``None`` without any.

    Each cell is the median over the contexts measured there. Of a ratio and an addition, the one is taken that predicts
    each measured step better from the others of its cell; a cell that nothing was measured at corrects nothing.
    """
    cells: dict[tuple[int, int], list[Pair]] = {}
    for point, seconds in medians.items():
        if point.phase == "mixed" and not point.held_out:
            composed_s = composed.ramp(batch_of(point), 0).first_s
            cells.setdefault((point.num_new_tokens, point.num_decodes), []).append((seconds, composed_s))
    if not cells:
        return None
    forms: tuple[Form, Form] = ("ratio", "added")
    form = min(forms, key=lambda form: sum(_left_out_error(pairs, form) for pairs in cells.values()))
    rows, columns = (tuple(sorted({key[axis] for key in cells})) for axis in (0, 1))
    return MixedCorrection(
        form=form,
        num_new_tokens=rows,
        num_decodes=columns,
        values=tuple(tuple(_cell(cells.get((row, column), []), form) for column in columns) for row in rows),
        num_points=sum(map(len, cells.values())),
    )


def batch_of(point: Point) -> Batch:
    """The decision whose step ``point`` times."""
    if point.phase == "decode":
        total = sum(point.decode_contexts()) if point.context_spread else point.batch_size * point.num_context_tokens
        return Batch(num_decodes=point.batch_size, decode_context_tokens=total)
    chunks = (Chunk(point.num_new_tokens, point.num_context_tokens),) * point.batch_size
    return Batch(chunks, point.num_decodes, point.num_decodes * point.num_decode_context_tokens)


def _cell(pairs: Sequence[Pair], form: Form) -> float:
    """A step is never made shorter by an addition, so that whatever it is added to stays positive."""
    if form == "ratio":
        return median(measured / composed for measured, composed in pairs) if pairs else 1.0
    return max(0.0, median(measured - composed for measured, composed in pairs)) if pairs else 0.0


def _left_out_error(pairs: Sequence[Pair], form: Form) -> float:
    """Sum of relative errors, each step predicted from the others of its cell (from none: uncorrected)."""
    total = 0.0
    for i, (measured, composed) in enumerate(pairs):
        value = _cell([*pairs[:i], *pairs[i + 1 :]], form)
        predicted = composed * value if form == "ratio" else composed + value
        total += abs(predicted - measured) / measured
    return total
