"""Charts with one line per variant over a common grid, and a tooltip that compares all of them at one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

from simserve.report.aggregate import Floats, rounded
from simserve.report.figure import TopChart, data
from simserve.report.style import VariantStyle

Row = dict[str, Any]


def grid_rows(name: str, grid: Floats, columns: Mapping[str, Floats]) -> list[Row]:
    """One row per grid point: the point under ``name`` and each variant's value under its key, absent where NaN."""
    numbers = {name: rounded(grid), **{key: rounded(values) for key, values in columns.items()}}
    rows = [dict(zip(numbers, row, strict=True)) for row in zip(*numbers.values(), strict=True)]
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def variant_lines(
    rows: Sequence[Row],
    styles: Sequence[VariantStyle],
    grid: alt.X | alt.Y,
    values: alt.X | alt.Y,
    tooltip: Sequence[alt.Tooltip],
) -> TopChart:
    """Lines of the styles' keys; ``grid`` encodes the common grid, ``values`` the folded field ``value``.

    The data hold every variant in one row per grid point, so the invisible rule at that point can name them all.
    """
    keys = [style.key for style in styles]
    color = alt.Scale(domain=keys, range=[style.color for style in styles])
    dash = alt.Scale(domain=keys, range=[list(style.dash) for style in styles])
    width = alt.Scale(domain=keys, range=[styles[0].width, styles[-1].width])  # Vega-Lite fills in between
    channel: Literal["x", "y"] = "y" if isinstance(grid, alt.Y) else "x"
    lines = (
        alt.Chart()
        .transform_fold([*keys], as_=["variant", "value"])
        .transform_filter("isValid(datum.value)")
        .mark_line()
        .encode(
            grid,
            values,
            alt.Color("variant:N", scale=color, legend=None),
            alt.StrokeDash("variant:N", scale=dash, legend=None),
            alt.StrokeWidth("variant:O", scale=width, legend=None),
            alt.Order(f"{_field(grid)}:Q"),
        )
    )
    return alt.layer(lines, hover_rules(channel, _field(grid), tooltip), data=data(rows))


def reference_rule(value: float, label: str, channel: Literal["x", "y"]) -> TopChart:
    """A labelled straight line at a value, such as an SLO."""
    mark = alt.Chart(data([{"at": value}]))
    at = alt.X("at:Q") if channel == "x" else alt.Y("at:Q")
    rule = mark.mark_rule(strokeDash=[3, 3], color="var(--ink-soft)").encode(at)
    text = mark.mark_text(align="left", baseline="top", dx=4, text=label, color="var(--ink-soft)")
    place = {"y": alt.value(0)} if channel == "x" else {"x": alt.value(0)}
    return alt.layer(rule, text.encode(at, **place))


def hover_rules(channel: Literal["x", "y"], field: str, tooltip: Sequence[alt.Tooltip]) -> alt.Chart:
    """A rule at every grid point that is seen only under the pointer and carries the tooltip."""
    over = alt.selection_point(name="over", on="pointerover", clear="pointerout", empty=False, fields=[field])
    at = alt.X(f"{field}:Q") if channel == "x" else alt.Y(f"{field}:Q")
    rules = alt.Chart().mark_rule(strokeWidth=5, color="var(--ink-soft)")
    visible = alt.when(over).then(alt.value(0.3)).otherwise(alt.value(0))
    hidden: alt.Chart = rules.encode(at, opacity=visible, tooltip=tooltip).add_params(over)
    return hidden


def _field(encoding: alt.X | alt.Y) -> str:
    return str(encoding.shorthand).partition(":")[0]
