"""Bars side by side that are made of parts: a bar per variant, a fill per part, names above the bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from simserve.report.figure import Figure, Key, Table, TopChart, data, finish, number_axis, number_tip
from simserve.report.words import number

SOLID = "1 0"


class Part(NamedTuple):
    """A part of a bar: its name, and its fill (a colour of the page)."""

    name: str
    fill: str


class Bars(NamedTuple):
    """What the bars are of: a figure's id and title, the axis's title with its unit, the parts, their sizes by variant
    and part, and the sentence under the chart."""

    id: str
    title: str
    axis: str
    parts: Sequence[Part]
    sizes: Mapping[str, Mapping[str, float]]
    caption: str


def bars_figure(bars: Bars, marks: Mapping[str, float] | None = None, mark_title: str = "") -> Figure:
    """A wide figure with its numbers; ``marks`` are ticks across the bars, such as what a formula says."""
    parts = [part for part in bars.parts if any(sizes[part.name] > 0 for sizes in bars.sizes.values())]
    keys = tuple(Key(part.name, part.fill, SOLID) for part in parts) if len(parts) > 1 else ()
    keys += (Key(mark_title, "var(--ink)", SOLID),) if marks else ()
    head = ("variant", *(part.name for part in parts), *(("in all",) if len(parts) > 1 else ()))
    head += (mark_title,) if marks else ()
    rows = [_numbers(name, sizes, parts, marks) for name, sizes in bars.sizes.items()]
    spec = finish(_chart(bars, parts, marks or {}, mark_title), 46 * len(bars.sizes) + 10)
    return Figure(bars.id, bars.title, bars.caption, spec, Table(head, tuple(rows)), keys=keys, wide=True)


def _numbers(
    name: str, sizes: Mapping[str, float], parts: Sequence[Part], marks: Mapping[str, float] | None
) -> tuple[str, ...]:
    values = [sizes[part.name] for part in parts]
    in_all = (_exact(sum(values)),) if len(parts) > 1 else ()
    return (name, *map(_exact, values), *in_all, *((number(marks.get(name)),) if marks else ()))


def _exact(value: float) -> str:
    """Whole numbers to the last digit, others to three."""
    return f"{value:,.0f}" if value == round(value) else number(value)


def _chart(bars: Bars, parts: Sequence[Part], marks: Mapping[str, float], mark_title: str) -> TopChart:
    rows: list[dict[str, Any]] = [
        {"variant": name, "part": part.name, "order": i, "size": float(f"{sizes[part.name]:.6g}")}
        for name, sizes in bars.sizes.items()
        for i, part in enumerate(parts)
    ]
    scale = alt.Scale(paddingInner=0.55, paddingOuter=0.5)
    place = alt.Y("variant:N", sort=list(bars.sizes), axis=None, scale=scale)
    fills = alt.Scale(domain=[part.name for part in parts], range=[part.fill for part in parts])
    drawn = alt.Chart(data(rows)).mark_bar(stroke="var(--surface)", strokeWidth=1)
    drawn = drawn.encode(
        place,
        alt.X("size:Q", stack=True, axis=number_axis(bars.axis)),
        alt.Color("part:N", scale=fills, legend=None),
        alt.Order("order:Q"),
        tooltip=["variant:N", "part:N", number_tip("size", bars.axis)],
    )
    names = alt.Chart(data([{"variant": name} for name in bars.sizes]))
    text = names.mark_text(align="left", baseline="bottom", dy=-13, limit=330, fontWeight=600)
    layers: list[alt.Chart] = [drawn, text.encode(place, x=alt.value(0), text="variant:N")]
    if marks:
        ticks = alt.Chart(data([{"variant": name, "at": float(f"{at:.5g}")} for name, at in marks.items()]))
        ticks = ticks.mark_tick(color="var(--ink)", thickness=3, size=26)
        layers.append(ticks.encode(place, x=alt.X("at:Q"), tooltip=["variant:N", number_tip("at", mark_title)]))
    return alt.layer(*layers)
