"""Charts in groups of rows: a group per tenant with its name above it, a row per variant; spans, or bars up to one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt

from simserve.report.aggregate import is_skewed, log_ticks
from simserve.report.figure import TopChart, data, duration_axis, duration_tip, finish
from simserve.report.style import VariantStyle

ROW_PIXELS = 16
_HEADING, _GAP, _BAR = 1.3, 0.5, 0.36  # rows; a bar's half
_FAR = 5.0  # a limit so many times beyond all that was reached would squeeze the rest: it is left out of the axis

Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Rows that belong together under a heading: numbers by the variants' keys, and a limit across them, if any."""

    heading: str
    values: Mapping[str, tuple[float, ...]]
    limit: float | None = None


class Scale(NamedTuple):
    """The axis from 0 to 1 of a bar chart, and its line in a tooltip."""

    axis: alt.Axis
    tip: alt.Tooltip


def span_chart(groups: Sequence[Group], styles: Sequence[VariantStyle], words: tuple[str, str]) -> dict[str, Any]:
    """A line from the first to the second of a row's two values (seconds, called ``words``) with a dot and a tick at
    its ends, and a dashed line where a group has a limit. At least one row has values."""
    tops, height = _tops(groups, len(styles))
    rows = [{**row, "low": values[0], "high": values[1]} for row, values in _rows(groups, tops, styles)]
    reached: list[float] = [row[end] for row in rows for end in ("low", "high")]
    limits: list[Row] = [
        {"of": group.heading, "limit": group.limit, "top": top + _HEADING, "bottom": bottom - _GAP + _BAR}
        for group, top, bottom in zip(groups, tops, [*tops[1:], height], strict=True)
        if group.limit is not None and max(reached) * _FAR >= group.limit >= min(reached) / _FAR
    ]
    axis, scale = _seconds(reached + [row["limit"] for row in limits])
    y = _y("row", height)
    tips = [alt.Tooltip("of:N", title="tenant"), alt.Tooltip("variant:N")]
    tips += [duration_tip(name, word) for name, word in zip(("low", "high"), words, strict=True)]
    base = alt.Chart(data(rows)).encode(y, _color(styles), tooltip=tips)
    low, high = (alt.X(f"{name}:Q", axis=axis, scale=scale) for name in ("low", "high"))
    layers: list[alt.Chart] = [
        base.mark_rule(strokeWidth=3).encode(low, alt.X2("high:Q")),
        base.mark_point(filled=True, size=70, opacity=1).encode(low),
        base.mark_tick(thickness=3, size=12).encode(high),
    ]
    if limits:
        rule = alt.Chart(data(limits)).mark_rule(strokeDash=[4, 3], color="var(--ink)", strokeWidth=1.5)
        at = alt.X("limit:Q", axis=axis, scale=scale)
        tip = [alt.Tooltip("of:N", title="tenant"), duration_tip("limit", "limit")]
        layers.append(rule.encode(at, _y("top", height), alt.Y2("bottom:Q"), tooltip=tip))
    return _finished(alt.layer(*layers, _headings(groups, tops, height)), height)


def bar_chart(groups: Sequence[Group], styles: Sequence[VariantStyle], scale: Scale) -> dict[str, Any]:
    """A bar per row from 0 to its one value, at most 1; a dashed line where a group has a limit."""
    tops, height = _tops(groups, len(styles))
    rows = [
        {**row, "value": values[0], "begin": row["row"] - _BAR, "end": row["row"] + _BAR, "zero": 0}
        for row, values in _rows(groups, tops, styles)
    ]
    x = alt.X("zero:Q", axis=scale.axis, scale=alt.Scale(domain=[0, 1]))
    tips = [alt.Tooltip("of:N", title=" "), alt.Tooltip("variant:N"), scale.tip]
    bars = alt.Chart(data(rows)).mark_rect()
    drawn = bars.encode(x, alt.X2("value:Q"), _y("begin", height), alt.Y2("end:Q"), _color(styles), tooltip=tips)
    return _finished(alt.layer(drawn, _headings(groups, tops, height)), height)


def _tops(groups: Sequence[Group], num_rows: int) -> tuple[list[float], float]:
    """Where each group begins, in rows from the top, and where the last one ends."""
    each = _HEADING + num_rows + _GAP
    return [i * each for i in range(len(groups))], len(groups) * each


def _rows(
    groups: Sequence[Group], tops: Sequence[float], styles: Sequence[VariantStyle]
) -> Iterator[tuple[Row, tuple[float, ...]]]:
    """A row for each value that there is: its heading, its variant, its place, and the values to five digits."""
    for group, top in zip(groups, tops, strict=True):
        for i, style in enumerate(styles):
            if style.key in group.values:
                row = {"of": group.heading, "variant": style.name, "key": style.key, "row": top + _HEADING + i + 0.5}
                yield row, tuple(float(f"{value:.5g}") for value in group.values[style.key])


def _seconds(values: Sequence[float]) -> tuple[alt.Axis, alt.Scale]:
    """An axis of durations from 0, or a logarithmic one where the values span much."""
    high = max(values)
    if not is_skewed(values):
        return duration_axis("", ticks=5, grid=True), alt.Scale(domain=[0, 1.05 * high], nice=False)
    low = max(min(value for value in values if value > 0), high / 1e6)
    low, high = 0.8 * low, 1.25 * high
    axis = duration_axis("logarithmic scale", log_ticks(low, high, 6), grid=True)
    return axis, alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)


def _y(field: str, height: float) -> alt.Y:
    return alt.Y(f"{field}:Q", axis=None, scale=alt.Scale(domain=[0, height], reverse=True, nice=False))


def _color(styles: Sequence[VariantStyle]) -> alt.Color:
    scale = alt.Scale(domain=[style.key for style in styles], range=[style.color for style in styles])
    return alt.Color("key:N", scale=scale, legend=None)


def _headings(groups: Sequence[Group], tops: Sequence[float], height: float) -> alt.Chart:
    rows = [{"heading": group.heading, "row": top + _HEADING - 0.2} for group, top in zip(groups, tops, strict=True)]
    text = alt.Chart(data(rows)).mark_text(align="left", baseline="bottom", limit=330, fontWeight=600)
    headings: alt.Chart = text.encode(_y("row", height), x=alt.value(0), text="heading:N")
    return headings


def _finished(chart: TopChart, height: float) -> dict[str, Any]:
    return finish(chart, round(ROW_PIXELS * height) + 4)
