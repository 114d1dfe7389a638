"""A figure of the report: a chart, its text alternative, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from simserve.report.aggregate import linear_ticks

Legend = Literal["", "variants", "cache", "slots"]
TopChart = alt.Chart | alt.LayerChart | alt.FacetChart


@dataclass(frozen=True)
class Table:
    """A small table: column heads, and rows whose first cell is the row's head. All cells are plain text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Key:
    """An entry of a figure's own legend: a line's label, colour and SVG dash."""

    label: str
    color: str
    dash: str


@dataclass(frozen=True)
class Figure:
    """``caption`` says in words what the chart shows: it is read under the chart and, to those who cannot see it,
    instead of it. ``spec`` is a Vega-Lite specification without theme."""

    id: str
    title: str
    caption: str
    spec: dict[str, Any]
    table: Table | None = None
    keys_title: str = ""
    keys: tuple[Key, ...] = ()
    wide: bool = False


def finish(chart: TopChart, height: int = 240) -> dict[str, Any]:
    """The specification of a chart that is as wide as its box, without the theme, which the page holds once."""
    spec: dict[str, Any] = chart.properties(width="container", height=height).to_dict(validate=False)
    for key in ("config", "$schema"):
        spec.pop(key, None)
    return spec


def data(rows: Sequence[dict[str, Any]]) -> alt.InlineData:
    """Rows, already aggregated, as a chart's data."""
    return alt.InlineData(values=list(rows))


def duration_axis(title: str, values: Sequence[float] | None = None, ticks: int = 6, grid: bool = False) -> alt.Axis:
    """An axis of seconds whose labels say µs, ms, s, min or h (the page's own format)."""
    return _axis(title, "duration", values, ticks, grid)


def number_axis(title: str, values: Sequence[float] | None = None, ticks: int = 6, grid: bool = False) -> alt.Axis:
    """An axis of numbers with labels such as 1,200 or 12k (the page's own format)."""
    return _axis(title, "compact", values, ticks, grid)


def share_axis(title: str, ticks: int = 6, grid: bool = False) -> alt.Axis:
    """An axis of shares, as percentages."""
    return alt.Axis(title=title, format=".0%", tickCount=ticks, grid=grid)


def time_x(field: str, end_s: float, ticks: int = 6, grid: bool = False) -> alt.X:
    """The common clock of all charts over time: from 0 to the end of the longest variant."""
    unit, unit_s = clock_unit(end_s)
    marks = [tick * unit_s for tick in linear_ticks(end_s / unit_s, ticks)]
    axis = _axis("time", unit, marks, ticks, grid)
    return alt.X(f"{field}:Q", axis=axis, scale=alt.Scale(domain=[0, end_s], nice=False))


def duration_tip(field: str, title: str) -> alt.Tooltip:
    """A line of a tooltip: a duration in the unit that suits it."""
    return alt.Tooltip(f"{field}:Q", title=title, formatType="duration", format="")


def number_tip(field: str, title: str) -> alt.Tooltip:
    """A line of a tooltip: a number."""
    return alt.Tooltip(f"{field}:Q", title=title, formatType="compact", format="")


def share_tip(field: str, title: str) -> alt.Tooltip:
    """A line of a tooltip: a percentage."""
    return alt.Tooltip(f"{field}:Q", title=title, format=".1%")


def clock_unit(end_s: float) -> tuple[str, float]:
    """The page's format for points in time up to ``end_s`` (one unit for all of them), and that unit in seconds."""
    if end_s < 600:
        return "duration", 1.0
    return ("minutes", 60.0) if end_s < 7200 else ("hours", 3600.0)


def _axis(title: str, form: str, values: Sequence[float] | None, ticks: int, grid: bool) -> alt.Axis:
    if values is None:
        return alt.Axis(title=title, formatType=form, format="", tickCount=ticks, grid=grid)
    return alt.Axis(title=title, formatType=form, format="", values=list(values), grid=grid)
