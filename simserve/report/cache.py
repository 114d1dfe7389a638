"""Where the bytes of the KV cache went: over time for each variant, and on average side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from simserve.report.aggregate import resample_means
from simserve.report.figure import Figure, Table, TopChart, data, duration_tip, finish, share_axis, share_tip, time_x
from simserve.report.lines import grid_rows, hover_rules
from simserve.report.load import bounds_of
from simserve.report.style import VariantStyle
from simserve.report.words import count, dig, grouped, share

MAX_VARIANTS = 12  # cache timelines drawn; the comparison holds all
NUM_BINS = 150


class CachePart(NamedTuple):
    """A part of the cache: its key in data, its name, its place in the summary, its fill and what it means."""

    key: str
    name: str
    path: str
    fill: str
    meaning: str


PARTS = (
    CachePart("used", "filled", "kv_cache.mean_used", "var(--kv-used)", "holds tokens"),
    CachePart(
        "reserved_unused",
        "reserved, still empty",
        "kv_cache.mean_reserved_unused",
        "url(#hatch-reserved)",
        "promised to a running request that will fill it later",
    ),
    CachePart(
        "internal",
        "never filled",
        "kv_cache.mean_internal_fragmentation",
        "url(#hatch-internal)",
        "held by a request that will never fill it: over-declared, or the tail of its last block",
    ),
    CachePart(
        "external",
        "free but unusable",
        "kv_cache.mean_external_fragmentation",
        "url(#hatch-external)",
        "free, in holes too small for the next request",
    ),
    CachePart("free", "free", "", "var(--kv-free)", "free for the next request"),
)

_FILLS = alt.Scale(domain=[part.name for part in PARTS], range=[part.fill for part in PARTS])
_KEY_FILLS = alt.Scale(domain=[part.key for part in PARTS], range=[part.fill for part in PARTS])


def cache_figures(
    styles: Sequence[VariantStyle],
    timelines: Mapping[str, pd.DataFrame],
    summaries: Mapping[str, Mapping[str, Any]],
) -> list[Figure]:
    """The comparison of mean shares, then cache usage over time of each variant that took time; of those that have a
    cache."""
    styles = [style for style in styles if dig(summaries[style.name], "kv_cache.capacity_tokens") != 0]
    ran = [style for style in styles if len(timelines[style.name])][:MAX_VARIANTS]
    if not ran:
        return []
    end_s = max(float(timelines[style.name]["end_s"].iloc[-1]) for style in ran)
    figures = [_comparison(styles, summaries)]
    for style in ran:
        spec = _over_time(timelines[style.name], end_s)
        caption = _caption(summaries[style.name])
        figures.append(Figure(f"cache-{style.key}", style.name, caption, spec))
    return figures


def mean_shares(summary: Mapping[str, Any]) -> dict[str, float]:
    """Time-weighted share of the cache per part; what the four named parts leave is free. Sums to one."""
    shares = {part.key: dig(summary, part.path) or 0.0 for part in PARTS if part.path}
    return {**shares, "free": max(0.0, 1.0 - sum(shares.values()))}


def _comparison(styles: Sequence[VariantStyle], summaries: Mapping[str, Mapping[str, Any]]) -> Figure:
    shares = {style.name: mean_shares(summaries[style.name]) for style in styles}
    filled = {name: share(parts["used"]) for name, parts in shares.items()}
    caption = f"Filled with tokens, on average from first arrival to last answer: {grouped(filled)}."
    rows = tuple(
        (
            name,
            count(dig(summaries[name], "kv_cache.capacity_tokens")),
            *(share(parts[part.key]) for part in PARTS),
            share(dig(summaries[name], "kv_cache.peak_used")),
        )
        for name, parts in shares.items()
    )
    table = Table(("variant", "capacity (tokens)", *(part.name for part in PARTS), "peak filled"), rows)
    spec = finish(_bars(shares), 46 * len(shares) + 10)
    return Figure("cache-shares", "Where the cache went", caption, spec, table, wide=True)


def _bars(shares: Mapping[str, Mapping[str, float]]) -> TopChart:
    rows = [
        {"variant": name, "part": part.name, "order": i, "share": round(parts[part.key], 5)}
        for name, parts in shares.items()
        for i, part in enumerate(PARTS)
    ]
    place = alt.Y("variant:N", sort=list(shares), axis=None, scale=alt.Scale(paddingInner=0.55, paddingOuter=0.5))
    width = alt.X(
        "share:Q",
        stack=True,
        scale=alt.Scale(domain=[0, 1]),
        axis=share_axis("share of the cache, averaged over time"),
    )
    bars = alt.Chart(data(rows)).mark_bar(stroke="var(--surface)", strokeWidth=1)
    bars = bars.encode(
        place,
        width,
        alt.Color("part:N", scale=_FILLS, legend=None),
        alt.Order("order:Q"),
        tooltip=["variant:N", "part:N", share_tip("share", "share")],
    )
    names = alt.Chart(data([{"variant": name} for name in shares]))
    text = names.mark_text(align="left", baseline="bottom", dy=-13, limit=330, fontWeight=600)
    return alt.layer(bars, text.encode(place, x=alt.value(0), text="variant:N"))


def _over_time(timeline: pd.DataFrame, end_s: float) -> dict[str, Any]:
    bounds = bounds_of(timeline)
    edges = np.linspace(bounds[0], bounds[-1], NUM_BINS + 1)
    columns = {
        part.key: resample_means(bounds, timeline[f"kv_{part.key}_share"].to_numpy(np.float64), edges) for part in PARTS
    }
    rows = grid_rows("t", (edges[:-1] + edges[1:]) / 2, columns)
    fill = alt.Y("value:Q", stack=True, axis=share_axis("share of the cache", ticks=5, grid=True))
    areas = (
        alt.Chart()
        .transform_fold([part.key for part in PARTS], as_=["part", "value"])
        .transform_calculate(order=f"indexof({[part.key for part in PARTS]}, datum.part)")
        .mark_area(clip=True, interpolate="step")
        .encode(
            time_x("t", end_s),
            fill.scale(domain=[0, 1]),
            alt.Color("part:N", scale=_KEY_FILLS, legend=None),
            alt.Order("order:Q"),
        )
    )
    tooltip = [duration_tip("t", "time"), *(share_tip(part.key, part.name) for part in PARTS)]
    return finish(alt.layer(areas, hover_rules("x", "t", tooltip), data=data(rows)), 190)


def _caption(summary: Mapping[str, Any]) -> str:
    shares = mean_shares(summary)
    wasted = shares["reserved_unused"] + shares["internal"] + shares["external"]
    return (
        f"On average {share(shares['used'])} of the cache is filled (peak {share(dig(summary, 'kv_cache.peak_used'))}) "
        f"and {share(wasted)} is held or blocked without holding a token."
    )
