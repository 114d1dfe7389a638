"""More points where the fit is worst: rows that their neighbours predict badly get another row beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from calibrate.fit import make_table
from calibrate.grid import Point
from calibrate.options import GridSize
from simserve.step_time.profile_schema import Table, TableRow
from simserve.step_time.source import Phase
from simserve.step_time.surface import Below, Surface

GOOD_ENOUGH = 0.03
_BELOW: dict[Phase, Below] = {"prefill": "linear", "decode": "flat"}
_BUDGET_S: dict[GridSize, float] = {"quick": 0.0, "standard": 15.0, "full": 60.0}
_MOST_ROWS: dict[GridSize, int] = {"quick": 0, "standard": 4, "full": 8}


class Weak(NamedTuple):
    """A row that its neighbours miss by ``error`` (the mean over its contexts), and where to measure beside it."""

    error: float
    phase: Phase
    row: int
    points: tuple[Point, ...]
    step_s: float


def refine(medians: Mapping[Point, float], size: GridSize, repeats: int) -> tuple[list[Point], str | None]:
    """Points to measure next, worst first, as far as the budget of the grid goes; and a note that says so.

    Every inner row is left out of its table and predicted by the others. Beside the worst ones a row is added, at the
    geometric middle of the wider gap to a neighbour, where a kernel's jump is least resolved.
    """
    weak: list[Weak] = []
    for phase in _BELOW:
        weak += _weak_rows(make_table(medians, phase), phase)
    chosen: list[Weak] = []
    left_s = _BUDGET_S[size]
    for row in sorted(weak, reverse=True):
        cost_s = row.step_s * len(row.points) * (repeats + 2)
        if len(chosen) < _MOST_ROWS[size] and cost_s <= left_s and row.points[0] not in {w.points[0] for w in chosen}:
            chosen.append(row)
            left_s -= cost_s
    if not chosen:
        return [], None
    points = [point for row in chosen for point in row.points]
    worst = chosen[0]
    what = "tokens" if worst.phase == "prefill" else "sequences"
    where = f"the worst were {worst.phase} steps of {worst.row} {what}, {worst.error:.0%}"
    budget = f"within {_BUDGET_S[size]:.0f} s and {_MOST_ROWS[size]} rows"
    return points, f"{len(points)} points were added where neighbours predict a row badly ({where}), {budget}"


def _weak_rows(table: Table, phase: Phase) -> list[Weak]:
    rows = table.rows
    found = []
    for i in range(1, len(rows) - 1):
        error = _error(Table(rows=(*rows[:i], *rows[i + 1 :])), rows[i], phase)
        below, row, above = rows[i - 1].row, rows[i].row, rows[i + 1].row
        ends = (below, row) if row / below > above / row else (row, above)
        new = round(math.sqrt(ends[0] * ends[1]))
        if error > GOOD_ENOUGH and new not in ends:
            points = tuple(_point(phase, new, context) for context in rows[i].contexts)
            found.append(Weak(error, phase, row, points, max(rows[i + 1].seconds)))
    return found


def _error(rest: Table, row: TableRow, phase: Phase) -> float:
    if len(rest.rows) < 2:
        return 0.0
    curve = Surface(rest, _BELOW[phase]).curve(row.row)
    return sum(abs(curve.at(c) / s - 1) for c, s in zip(row.contexts, row.seconds, strict=True)) / len(row.contexts)


def _point(phase: Phase, row: int, context: int) -> Point:
    return Point("prefill", 1, row, context) if phase == "prefill" else Point("decode", row, 1, context)
