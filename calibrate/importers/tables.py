"""Tables of points that lie on a grid: the points themselves, and the error of leaving rows and contexts out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from calibrate.importers.laws import LeftOut
from simserve.step_time.profile_schema import Table, TableRow
from simserve.step_time.source import MeasuredPoint
from simserve.step_time.surface import Surface

Phase = Literal["prefill", "decode"]


def on_a_grid(points: Sequence[MeasuredPoint], phase: Phase) -> bool:
    """Whether the points of a phase have two rows or more of two contexts or more, and few rows have less."""
    cells = _cells(points, phase)
    wide = sum(len(row) > 1 for row in cells.values())
    return wide >= 2 and wide >= 0.8 * len(cells)


def grid_table(points: Sequence[MeasuredPoint], phase: Phase) -> Table:
    """The medians of each point of a grid; rows with a single context are left out, since nothing tells their slope."""
    rows = []
    for row, cells in sorted(_cells(points, phase).items()):
        if len(cells) > 1:
            contexts = tuple(sorted(cells))
            rows.append(TableRow(row=row, contexts=contexts, seconds=tuple(median(cells[c]) for c in contexts)))
    return Table(rows=tuple(rows))


def _cells(points: Sequence[MeasuredPoint], phase: Phase) -> dict[int, dict[int, list[float]]]:
    rows: dict[int, dict[int, list[float]]] = {}
    for p in points:
        if p.phase == phase and (phase == "decode" or p.batch_size == 1):
            row = p.num_new_tokens if phase == "prefill" else p.batch_size
            rows.setdefault(row, {}).setdefault(p.num_context_tokens, []).append(p.seconds)
    return rows


def leave_out_of_grid(table: Table, phase: Phase) -> list[LeftOut]:
    """Each inner row predicted from the rows beside it, and each inner context of a row from the contexts beside it."""
    found: list[LeftOut] = []
    for i in range(1, len(table.rows) - 1):
        row = table.rows[i]
        curve = Surface(Table(rows=(table.rows[i - 1], table.rows[i + 1]))).curve(row.row)
        shared = {c for side in (i - 1, i + 1) for c in table.rows[side].contexts}
        for context, seconds in zip(row.contexts, row.seconds, strict=True):
            if min(shared) <= context <= max(shared):
                found.append(LeftOut(_point(phase, row.row, context, seconds), curve.at(context), False))
    for row in table.rows:
        for i in range(1, len(row.contexts) - 1):
            share = (row.contexts[i] - row.contexts[i - 1]) / (row.contexts[i + 1] - row.contexts[i - 1])
            predicted = row.seconds[i - 1] + share * (row.seconds[i + 1] - row.seconds[i - 1])
            point = _point(phase, row.row, row.contexts[i], row.seconds[i])
            found.append(LeftOut(point, predicted, False))
    return found


def _point(phase: Phase, row: int, context: int, seconds: float) -> MeasuredPoint:
    if phase == "prefill":
        return MeasuredPoint(phase, 1, row, context, seconds)
    return MeasuredPoint(phase, row, 1, context, seconds)
