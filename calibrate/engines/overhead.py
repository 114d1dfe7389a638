"""What an engine's step takes beyond the bare forward of the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.engines.engine import StepShape, shape_of
from calibrate.errors import CalibrationError
from calibrate.fit_mixed import batch_of
from calibrate.grid import Point
from simserve.step_time.composition import ComposedSteps
from simserve.step_time.profile_schema import Table

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Overhead:
    """Seconds per step, per sequence in the step, and per foreign pair: a new token of one sequence and a cached or new
    token of another, which an engine that attends to the whole row under one mask computes and throws away."""

    constant_s: float
    per_sequence_s: float = 0.0
    per_foreign_pair_s: float = 0.0

    def of(self, shape: StepShape) -> float:
        """Seconds on top of the bare forward of ``shape``."""
        return float(np.dot(astuple(self), _terms(shape)))


def fit_overhead(medians: Mapping[Point, float], bare: ComposedSteps) -> Overhead:
    """The overhead that the steps not held out support: of a constant, a constant and a share per sequence, and both
    with foreign pairs, the one that predicts each step best from the others, if no part of it is negative. Least
    squares of relative errors. Raises ``CalibrationError`` if the engine's steps are not longer than the forwards."""
    fitted = {point: seconds for point, seconds in medians.items() if not point.held_out}
    measured = np.array(list(fitted.values()))
    excess = measured - np.array([bare.ramp(batch_of(point), 0).first_s for point in fitted])
    terms = np.array([_terms(shape_of(point)) for point in fitted])
    found = []
    for columns in ((0,), (0, 1), (0, 2), (0, 1, 2)):
        values = _solve(terms[:, columns], excess, measured)
        if values.min() >= 0:
            whole = np.zeros(3)
            whole[list(columns)] = values
            found.append((_left_out_error(terms[:, columns], excess, measured), Overhead(*map(float, whole))))
    if not found:
        raise CalibrationError(
            "overhead_for: the engine's steps must be longer than the bare forwards (got shorter ones); "
            "measure both on a quiet machine, one after the other"
        )
    return min(found, key=lambda pair: pair[0])[1]


def add_to_prefill(table: Table, overhead: Overhead) -> Table:
    """The prefill table of one prompt per step, with ``overhead``."""
    return _add(table, lambda row, context: overhead.of(((row, context),)))


def add_to_decode(table: Table, overhead: Overhead) -> Table:
    """The decode table, with ``overhead`` of as many sequences as the batch has."""
    return _add(table, lambda row, context: overhead.of(((1, context),) * row))


def _add(table: Table, more: Callable[[int, int], float]) -> Table:
    """Seconds and, where they are known, the bounds about them; nothing is known of the overhead's own spread."""
    rows = []
    for row in table.rows:
        extra = [more(row.row, context) for context in row.contexts]
        moved = {
            name: None if cells is None else tuple(s + e for s, e in zip(cells, extra, strict=True))
            for name, cells in (("seconds", row.seconds), ("low_s", row.low_s), ("high_s", row.high_s))
        }
        rows.append(row.model_copy(update=moved))
    return Table(rows=tuple(rows))


def _terms(shape: StepShape) -> tuple[float, float, float]:
    num_new = sum(new for new, _ in shape)
    num_keys = sum(new + context for new, context in shape)
    own = sum(new * (new + context) for new, context in shape)
    return 1.0, float(len(shape)), float(num_new * num_keys - own)


def _solve(terms: Array, excess: Array, measured: Array) -> Array:
    scale = terms.max(axis=0)  # foreign pairs come in millions
    scale[scale == 0] = 1.0
    solution: Array = np.linalg.lstsq(terms / scale / measured[:, None], excess / measured, rcond=None)[0]
    scaled: Array = solution / scale
    return scaled


def _left_out_error(terms: Array, excess: Array, measured: Array) -> float:
    """Mean relative error of each step predicted from the others."""
    errors = []
    for i in range(len(measured)):
        others = [j for j in range(len(measured)) if j != i]
        values = _solve(terms[others], excess[others], measured[others])
        errors.append(abs(terms[i] @ values - excess[i]) / measured[i])
    return float(np.mean(errors))
