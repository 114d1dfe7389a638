"""Both tables of a profile as heat maps: every measured cell in milliseconds, darker (in dark: lighter) is slower."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from simserve.report.figure import Figure, TopChart, data, finish
from simserve.report.figure import Table as NumberTable
from simserve.report.words import duration, significant, times
from simserve.step_time.profile_schema import Profile, Table, TableRow

_FILLS = tuple(f"var(--s{i})" for i in (0, 1, 3, 4, 5))  # the middle one carries neither dark nor light text well
_TEXTS = ("var(--ink)",) * 2 + ("var(--surface)",) * 3
MAX_ROWS = 24


def table_figures(profile: Profile) -> dict[str, Figure]:
    """A heat map of the prefill table and one of the decode table, by phase."""
    return {
        "prefill": _heat_map(profile.prefill, "prefill", "Prefill table", "new tokens", "cached before"),
        "decode": _heat_map(profile.decode, "decode", "Decode table", "rows in the batch", "context of each row"),
    }


def _heat_map(table: Table, phase: str, title: str, rows: str, columns: str) -> Figure:
    cells = [
        (row.row, context, seconds)
        for row in thinned(table.rows)
        for context, seconds in zip(row.contexts, row.seconds, strict=True)
    ]
    first, last = min(cells, key=lambda cell: cell[2]), max(cells, key=lambda cell: cell[2])
    caption = (
        f"Milliseconds per step, medians of clean samples: from {duration(first[2])} at {first[0]:,} × {first[1]:,} "
        f"to {duration(last[2])} at {last[0]:,} × {last[1]:,} ({rows} × {columns}): {times(last[2] / first[2])}."
    )
    height = 26 * len({cell[0] for cell in cells}) + 60
    spec = finish(_chart(cells, rows, columns), height)
    return Figure(f"table-{phase}", title, caption, spec, _numbers(table, rows, columns))


def _chart(cells: list[tuple[int, int, float]], rows: str, columns: str) -> TopChart:
    first, last = min(cell[2] for cell in cells), max(cell[2] for cell in cells)
    low, high = math.log(first), math.log(last)
    values = [
        {
            "row": row,
            "column": context,
            "y": float(f"{seconds:.5g}"),
            "text": significant(1e3 * seconds, 3 if seconds < 10 else 2),
            "shade": min(len(_FILLS) - 1, int(len(_FILLS) * (math.log(seconds) - low) / ((high - low) or 1.0))),
        }
        for row, context, seconds in cells
    ]
    place = [
        alt.X("column:O", axis=_axis(columns), scale=alt.Scale(paddingInner=0.04)),
        alt.Y("row:O", axis=_axis(rows), scale=alt.Scale(paddingInner=0.06)),
    ]
    tooltip = [
        alt.Tooltip("row:O", title=rows, format=","),
        alt.Tooltip("column:O", title=columns, format=","),
        alt.Tooltip("text:N", title="ms"),
    ]
    shades = list(range(len(_FILLS)))
    fill = alt.Color("shade:O", scale=alt.Scale(domain=shades, range=list(_FILLS)), legend=None)
    ink = alt.Color("shade:O", scale=alt.Scale(domain=shades, range=list(_TEXTS)), legend=None)
    boxes = alt.Chart(data(values)).mark_rect(cornerRadius=3).encode(*place, fill, tooltip=tooltip)
    texts = alt.Chart(data(values)).mark_text(fontSize=11.5).encode(*place, alt.Text("text:N"), ink, tooltip=tooltip)
    layers: TopChart = alt.layer(boxes, texts).resolve_scale(color="independent")
    return layers


def _axis(title: str) -> alt.Axis:
    return alt.Axis(title=title, grid=False, labelAngle=0, format=",", domain=False, ticks=False)


def _numbers(table: Table, rows: str, columns: str) -> NumberTable:
    contexts = sorted({context for row in table.rows for context in row.contexts})
    lines = []
    for row in table.rows:
        cells = dict(zip(row.contexts, row.seconds, strict=True))
        lines.append((f"{row.row:,}", *(duration(cells.get(context)) for context in contexts)))
    return NumberTable((f"{rows} \\ {columns}", *(f"{context:,}" for context in contexts)), tuple(lines))


def thinned(rows: Sequence[TableRow], limit: int = MAX_ROWS) -> list[TableRow]:
    """At most ``limit`` of the rows, evenly through their order, the first and the last among them."""
    listed = list(rows)
    if len(listed) <= limit:
        return listed
    return [listed[round(i * (len(listed) - 1) / (limit - 1))] for i in range(limit)]
