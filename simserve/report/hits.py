"""What the prefix cache found: of all that was looked up, and over time beside what an infinite cache would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from simserve.report.aggregate import Floats
from simserve.report.figure import (
    Figure,
    Key,
    Table,
    data,
    duration_tip,
    finish,
    number_tip,
    share_axis,
    share_tip,
    time_x,
)
from simserve.report.lines import Row, grid_rows, hover_rules, variant_lines
from simserve.report.load import bounds_of
from simserve.report.part_bars import SOLID, Bars, Part, bars_figure
from simserve.report.style import VariantStyle
from simserve.report.words import dig, grouped, magnitude, ratio, share

MAX_VARIANTS = 12  # drawn over time one by one; the bars hold all
NUM_BINS = 80  # five bins of a timeline each
FOUND = Part("found", "var(--kv-used)")
EVICTED = Part("evicted, computed again", "var(--kv-internal)")
PENDING = Part("asked for before, but not computed", "var(--kv-reserved)")
NEW = Part("never asked for before", "var(--kv-free)")
BOUND = Key("an infinite cache", "var(--ink)", "5 3")
_COUNTS = tuple(f"prefix_{name}_tokens" for name in ("looked_up", "found", "evicted", "bound"))

Summaries = Mapping[str, Mapping[str, Any]]
Timelines = Mapping[str, pd.DataFrame]


def hit_figures(styles: Sequence[VariantStyle], timelines: Timelines, summaries: Summaries) -> list[Figure]:
    """What became of the tokens looked up, and hit rates over time, of the variants that looked any up."""
    seeking = [style for style in styles if dig(summaries[style.name], "kv_cache.prefix_looked_up_tokens")]
    drawn = [style for style in seeking if len(timelines[style.name])]
    if not drawn:
        return []
    end_s = max(float(timeline["end_s"].iloc[-1]) for timeline in timelines.values() if len(timeline))
    edges = np.linspace(0.0, end_s, NUM_BINS + 1)
    rates = {style.name: shares_over_time(timelines[style.name], edges) for style in drawn}
    figures = [_parts({style.name: summaries[style.name] for style in seeking})]
    if len(drawn) > 1:
        figures.append(_side_by_side(drawn, timelines, rates, edges))
    for style in drawn[:MAX_VARIANTS]:
        caption = _caption(summaries[style.name])
        parts = look_up_parts(summaries[style.name])
        shown = (FOUND, *(part for part in (EVICTED, PENDING) if parts[part.name]))
        keys = (*(Key(part.name, part.fill, SOLID) for part in shown), BOUND)
        title = f"Prefix hits: {style.name}"
        figures.append(Figure(f"hits-{style.key}", title, caption, _over_time(rates[style.name], edges), keys=keys))
    return figures


def look_up_parts(summary: Mapping[str, Any]) -> dict[str, float]:
    """Tokens looked up by what became of them; the parts add up to all of them."""
    paths = {FOUND: "found", EVICTED: "evicted", PENDING: "pending"}
    parts = {part.name: dig(summary, f"kv_cache.prefix_{path}_tokens") or 0.0 for part, path in paths.items()}
    return {**parts, NEW.name: (dig(summary, "kv_cache.prefix_looked_up_tokens") or 0.0) - sum(parts.values())}


def shares_over_time(timeline: pd.DataFrame, edges: Floats) -> dict[str, Floats]:
    """Tokens looked up in each bin, and which shares of them were found, evicted, and at most to be found; NaN where
    nothing was looked up."""
    bounds = bounds_of(timeline)
    middles = (bounds[:-1] + bounds[1:]) / 2
    looked_up, *rest = (np.histogram(middles, edges, weights=timeline[name])[0] for name in _COUNTS)
    names = ("found", "evicted", "bound")
    gone = np.full(len(looked_up), np.nan)
    shares = {
        name: np.divide(counts, looked_up, out=gone.copy(), where=looked_up > 0)
        for name, counts in zip(names, rest, strict=True)
    }
    return {"looked_up": np.where(looked_up > 0, looked_up, np.nan), **shares}


def _parts(summaries: Summaries) -> Figure:
    found = {name: share(dig(summary, "kv_cache.prefix_hit_rate")) for name, summary in summaries.items()}
    bound = {name: share(dig(summary, "kv_cache.prefix_hit_bound")) for name, summary in summaries.items()}
    lost = {name: _cost(summary) for name, summary in summaries.items()}
    caption = (
        f"Of the prompt tokens looked up when a request was first admitted, found: {grouped(found)}. An infinite cache "
        f"would have found {grouped(bound)}. Computed again because they had been evicted: {grouped(lost)}."
    )
    sizes = {name: look_up_parts(summary) for name, summary in summaries.items()}
    title = "What look-ups of prefixes found"
    return bars_figure(Bars("hits-parts", title, "prompt tokens", (FOUND, EVICTED, PENDING, NEW), sizes, caption))


def _cost(summary: Mapping[str, Any]) -> str:
    """What eviction cost: tokens, and their share of all that first admissions had to compute."""
    parts = look_up_parts(summary)
    computed = sum(parts.values()) - parts[FOUND.name]
    if not parts[EVICTED.name]:
        return "none"
    return f"{magnitude(parts[EVICTED.name])} tokens, {share(ratio(parts[EVICTED.name], computed))} of those computed"


def _caption(summary: Mapping[str, Any]) -> str:
    rate, bound = (share(dig(summary, f"kv_cache.prefix_hit_{name}")) for name in ("rate", "bound"))
    return f"Of the prompt tokens looked up in each spell of time. In all {rate} were found, of at most {bound}."


def _side_by_side(
    styles: Sequence[VariantStyle], timelines: Timelines, rates: Mapping[str, Mapping[str, Floats]], edges: Floats
) -> Figure:
    """Hit rates of all variants on one clock, and by quarters of each one's own run."""
    middle = (edges[:-1] + edges[1:]) / 2
    rows = grid_rows("t", middle, {style.key: rates[style.name]["found"] for style in styles})
    tooltip = [duration_tip("t", "time"), *(share_tip(style.key, style.name) for style in styles)]
    axis = share_axis("prefix hit rate", ticks=5, grid=True)
    value = alt.Y("value:Q", axis=axis, scale=alt.Scale(zero=True))
    spec = finish(variant_lines(rows, styles, time_x("t", float(edges[-1])), value, tooltip), 220)
    cells = []
    for style in styles:
        bounds = bounds_of(timelines[style.name])
        quarters = shares_over_time(timelines[style.name], np.linspace(bounds[0], bounds[-1], 5))["found"]
        cells.append((style.name, *(share(float(rate) if np.isfinite(rate) else None) for rate in quarters)))
    table = Table(("variant", "first quarter", "second", "third", "last quarter"), tuple(cells))
    caption = "Found of the prompt tokens looked up in each spell of time; an empty cache has to fill first."
    keys = tuple(Key(style.name, style.color, style.dash_array) for style in styles)
    return Figure("hits-rate", "Prefix hit rate over time", caption, spec, table, keys=keys, wide=True)


def _over_time(shares: Mapping[str, Floats], edges: Floats) -> dict[str, Any]:
    """Bars of what was found and evicted on top of each other, up to the dashed bound."""
    lost = shares["found"] + shares["evicted"]
    columns = {**shares, "lost": lost, "begin": edges[:-1], "end": edges[1:]}
    rows: list[Row] = [row for row in grid_rows("t", (edges[:-1] + edges[1:]) / 2, columns) if "found" in row]
    time, axis = time_x("begin", float(edges[-1])), share_axis("share of tokens looked up", ticks=5, grid=True)

    def bars(low: str, high: str, part: Part) -> alt.Chart:
        mark = alt.Chart().transform_calculate(zero="0").mark_rect(fill=part.fill, stroke=part.fill, strokeWidth=0.6)
        top = alt.Y(f"{high}:Q", axis=axis, scale=alt.Scale(domain=[0, 1]))
        drawn: alt.Chart = mark.encode(time, alt.X2("end:Q"), top, alt.Y2(f"{low}:Q"))
        return drawn

    bound = alt.Chart().mark_line(color=BOUND.color, strokeDash=[5, 3], interpolate="step", strokeWidth=1.5)
    tooltip = [
        duration_tip("t", "time"),
        number_tip("looked_up", "tokens looked up"),
        share_tip("found", FOUND.name),
        share_tip("evicted", EVICTED.name),
        share_tip("bound", BOUND.label),
    ]
    layers = [bars("zero", "found", FOUND), bars("found", "lost", EVICTED), bars("lost", "bound", PENDING)]
    layers += [bound.encode(alt.X("t:Q"), alt.Y("bound:Q")), hover_rules("x", "t", tooltip)]
    return finish(alt.layer(*layers, data=data(rows)), 190)
