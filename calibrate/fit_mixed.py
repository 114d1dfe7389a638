"""From measured mixed steps to a correction of the composition of prefill and decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from calibrate.grid import Point
from simserve.request import Batch, Chunk
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.profile_schema import MixedCorrection, Table

Form = Literal["ratio", "added"]
Pair = tuple[float, float]  # measured and composed seconds
_FORMS: tuple[Form, Form] = ("ratio", "added")


class Fitted(NamedTuple):
    """How steps of several sequences come out of the tables."""

    one_mask: bool
    mixed: MixedCorrection | None


def fit_composition(medians: Mapping[Point, float], prefill: Table, decode: Table) -> Fitted:
    """What measured mixed steps make of two tables: whether steps attend as one row under one mask or each sequence to
    its own cache (see ``ComposedSteps``), whichever predicts each measured mixed step better from the others, and the
    correction beyond that."""
    found = []
    for one_mask in (False, True):
        composed = ComposedSteps(prefill, decode, one_mask=one_mask)
        cells = _cells(medians, composed)
        error = min(_left_out_errors(cells, form) for form in _FORMS)
        found.append((error, Fitted(one_mask, fit_mixed(medians, composed))))
    return min(found, key=lambda pair: pair[0])[1]


def fit_mixed(medians: Mapping[Point, float], composed: ComposedSteps) -> MixedCorrection | None:
    """The correction that the measured mixed steps support, over new tokens and decodes; ``None`` without any.

    Each cell is the median over the contexts measured there. Of a ratio and an addition, the one is taken that predicts
    each measured step better from the others of its cell; a cell that nothing was measured at corrects nothing.
    """
    cells = _cells(medians, composed)
    if not cells:
        return None
    form = min(_FORMS, key=lambda form: _left_out_errors(cells, form))
    rows, columns = (tuple(sorted({key[axis] for key in cells})) for axis in (0, 1))
    return MixedCorrection(
        form=form,
        num_new_tokens=rows,
        num_decodes=columns,
        values=tuple(tuple(_cell(cells.get((row, column), []), form) for column in columns) for row in rows),
        num_points=sum(map(len, cells.values())),
    )


def batch_of(point: Point) -> Batch:
    """The decision whose step number ``num_repeats`` (from 0) ``point`` times."""
    if point.phase == "decode":
        total = sum(point.decode_contexts()) if point.context_spread else point.batch_size * point.num_context_tokens
        total -= point.batch_size * point.num_repeats
        return Batch(num_decodes=point.batch_size, decode_context_tokens=total)
    chunks = (Chunk(point.num_new_tokens, point.num_context_tokens),) * point.batch_size
    return Batch(chunks, point.num_decodes, point.num_decodes * point.num_decode_context_tokens)


def _cells(medians: Mapping[Point, float], composed: ComposedSteps) -> dict[tuple[int, int], list[Pair]]:
    """Measured and composed seconds of the mixed steps to fit, by new tokens and decodes."""
    cells: dict[tuple[int, int], list[Pair]] = {}
    for point, seconds in medians.items():
        if point.phase == "mixed" and not point.held_out:
            composed_s = composed.ramp(batch_of(point), 0).first_s
            cells.setdefault((point.num_new_tokens, point.num_decodes), []).append((seconds, composed_s))
    return cells


def _cell(pairs: Sequence[Pair], form: Form) -> float:
    """A step is never made shorter by an addition, so that whatever it is added to stays positive."""
    if form == "ratio":
        return median(measured / composed for measured, composed in pairs) if pairs else 1.0
    return max(0.0, median(measured - composed for measured, composed in pairs)) if pairs else 0.0


def _left_out_errors(cells: Mapping[tuple[int, int], Sequence[Pair]], form: Form) -> float:
    return sum(_left_out_error(pairs, form) for pairs in cells.values())


def _left_out_error(pairs: Sequence[Pair], form: Form) -> float:
    """Sum of relative errors, each step predicted from the others of its cell (from none: uncorrected)."""
    total = 0.0
    for i, (measured, composed) in enumerate(pairs):
        value = _cell([*pairs[:i], *pairs[i + 1 :]], form)
        predicted = composed * value if form == "ratio" else composed + value
        total += abs(predicted - measured) / measured
    return total
