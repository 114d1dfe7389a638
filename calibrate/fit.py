"""From samples to tables: medians per point, the error on held-out points, and where the tables reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from calibrate.clock import Clock
from calibrate.errors import CalibrationError
from calibrate.grid import Point
from calibrate.measure import seconds_of
from simserve.step_time.profile_schema import HeldOut, HeldOutError, Sample, Table, TableRow, Validity
from simserve.step_time.source import Phase
from simserve.step_time.surface import Below, Surface

_BELOW: dict[Phase, Below] = {"prefill": "linear", "decode": "flat"}


def point_medians(samples: Iterable[Sample], clock: Clock) -> dict[Point, float]:
    """Median seconds per point over its clean samples, or over all where it has no clean one."""
    groups: dict[Point, list[Sample]] = {}
    for sample in samples:
        shape = (sample.phase, sample.batch_size, sample.num_new_tokens, sample.num_context_tokens)
        groups.setdefault(Point(*shape, sample.held_out), []).append(sample)
    return {
        point: median(seconds_of(sample, clock) for sample in ([s for s in group if not s.dirty] or group))
        for point, group in groups.items()
    }


def make_table(medians: Mapping[Point, float], phase: Phase) -> Table:
    """The table of one phase. Rows with a single context are left out, since nothing is known of their slope.
    Raises ``CalibrationError`` when fewer than two rows remain."""
    rows: dict[int, dict[int, float]] = {}
    for point, seconds in medians.items():
        if point.phase == phase:
            rows.setdefault(point.row, {})[point.num_context_tokens] = seconds
    table = []
    for row, cells in sorted(rows.items()):
        if len(cells) > 1:
            contexts = tuple(sorted(cells))
            table.append(TableRow(row=row, contexts=contexts, seconds=tuple(cells[c] for c in contexts)))
    if len(table) < 2:
        raise CalibrationError(
            f"{phase}: at least 2 rows of 2 contexts must be measured (got {len(table)}); raise the limits of the grid"
        )
    return Table(rows=tuple(table))


def require_fittable(points: Iterable[Point]) -> None:
    """Raise ``CalibrationError`` now if the points would not make two tables."""
    fitted = {point: 1.0 for point in points if not point.held_out}
    make_table(fitted, "prefill")
    make_table(fitted, "decode")


def held_out_error(medians: Mapping[Point, float]) -> HeldOut:
    """Fit without the held-out points, predict them, and compare."""
    fitted = {point: seconds for point, seconds in medians.items() if not point.held_out}
    errors: dict[Phase, list[float]] = {"prefill": [], "decode": []}
    for phase, found in errors.items():
        surface = Surface(make_table(fitted, phase), _BELOW[phase])
        for point, seconds in medians.items():
            if point.phase == phase and point.held_out:
                predicted = surface.curve(point.row).at(point.num_context_tokens)
                found.append(abs(predicted - seconds) / seconds)
    prefill, decode = errors["prefill"], errors["decode"]
    return HeldOut(prefill=_summary(prefill), decode=_summary(decode), all=_summary(prefill + decode))


def make_validity(prefill: Table, decode: Table) -> Validity:
    """The outer ranges of both tables."""
    return Validity(
        max_prefill_tokens=prefill.rows[-1].row,
        max_prefill_context=max(row.contexts[-1] for row in prefill.rows),
        max_batch_size=decode.rows[-1].row,
        min_decode_context=min(row.contexts[0] for row in decode.rows),
        max_decode_context=max(row.contexts[-1] for row in decode.rows),
    )


def _summary(errors: list[float]) -> HeldOutError:
    if not errors:
        return HeldOutError(num_points=0, mean=None, p95=None, max=None)
    p95 = float(np.percentile(errors, 95))
    return HeldOutError(num_points=len(errors), mean=float(np.mean(errors)), p95=p95, max=max(errors))
