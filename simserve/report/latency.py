"""How long requests waited: the distribution of every latency, one curve per variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from simserve.metrics import latencies
from simserve.records import Records, itl_bin_edges_s
from simserve.report.aggregate import (
    Floats,
    is_skewed,
    log_ticks,
    quantile_curve,
    quantile_levels,
    weighted_quantile_curve,
)
from simserve.report.figure import Figure, Table, TopChart, duration_axis, duration_tip, finish, share_axis, share_tip
from simserve.report.lines import grid_rows, reference_rule, variant_lines
from simserve.report.style import VariantStyle
from simserve.report.words import dig, duration, grouped

TITLES = {
    "ttft_s": "Time to first token (TTFT)",
    "tpot_s": "Time per output token (TPOT)",
    "e2e_s": "Whole answer (E2E)",
    "itl_s": "Gap between tokens (ITL)",
}
_HALF = {
    "ttft_s": "Half of the first tokens arrive within",
    "tpot_s": "Half of the requests see a mean gap between tokens of at most",
    "e2e_s": "Half of the answers are complete within",
    "itl_s": "Half of the gaps between tokens last at most",
}
Summaries = Mapping[str, Mapping[str, Any]]
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def latency_figures(
    styles: Sequence[VariantStyle],
    records: Mapping[str, Records],
    summaries: Summaries,
    slo: object,
) -> list[Figure]:
    """A quantile curve for TTFT, TPOT, E2E and ITL; a latency that no request has gets no figure."""
    levels = quantile_levels()
    curves = {style.key: _curves(records[style.name], levels) for style in styles}
    figures = []
    for name, title in TITLES.items():
        columns = {key: curve[name] for key, curve in curves.items() if np.isfinite(curve[name]).any()}
        drawn = [style for style in styles if style.key in columns]
        if drawn:
            slo_s = getattr(slo, name, None)
            caption = _caption(name, drawn, summaries, slo_s)
            spec = quantile_chart(levels, columns, drawn, slo_s)
            table = _table(name, styles, summaries)
            figures.append(Figure(f"latency-{name.removesuffix('_s')}", title, caption, spec, table))
    return figures


def _curves(records: Records, levels: Floats) -> dict[str, Floats]:
    columns = latencies(records.requests)
    curves = {name: quantile_curve(columns[name], levels) for name in TITLES if name in columns}
    gaps = weighted_quantile_curve(itl_bin_edges_s(), records.itl_counts, levels)
    return {**curves, "itl_s": np.minimum(gaps, records.itl_max_s)}


def quantile_chart(
    levels: Floats, columns: Mapping[str, Floats], styles: Sequence[VariantStyle], slo_s: float | None = None
) -> dict[str, Any]:
    """Which share of the requests was served at least that fast: a curve per style, from its key's column of seconds at
    ``levels``; on a logarithmic axis where the values span much."""
    everything = np.concatenate(list(columns.values()))
    everything = everything[np.isfinite(everything)]
    ends = np.quantile(everything, [0.02, 1.0])
    tooltip = [share_tip("p", "share of requests"), *(duration_tip(style.key, style.name) for style in styles)]
    share = alt.Y("p:Q", axis=share_axis("share at or below", grid=True), scale=alt.Scale(domain=[0, 1]))
    values = _value_axis(everything, is_skewed(ends))
    chart: TopChart = variant_lines(grid_rows("p", levels, columns), styles, share, values, tooltip)
    if slo_s is not None and ends[0] <= slo_s <= 1.5 * ends[1]:
        chart = alt.layer(chart, reference_rule(slo_s, "SLO", "x"))
    return finish(chart, 250)


def _value_axis(everything: Floats, skewed: bool) -> alt.X:
    if not skewed:
        return alt.X("value:Q", axis=duration_axis("", ticks=5), scale=alt.Scale(zero=True, nice=True))
    high = float(everything.max())
    low = max(float(np.quantile(everything[everything > 0], 0.005)), high / 1e6)
    low, high = low * 0.9, high * 1.1
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    return alt.X("value:Q", axis=duration_axis("logarithmic scale", log_ticks(low, high, 7)), scale=scale)


def _caption(name: str, styles: Sequence[VariantStyle], summaries: Summaries, slo_s: float | None) -> str:
    texts = {
        style.name: f"{duration(dig(summaries[style.name], f'{name}.p50'))} "
        f"(99 of 100 within {duration(dig(summaries[style.name], f'{name}.p99'))})"
        for style in styles
    }
    goal = f" The SLO is {duration(slo_s)}." if slo_s is not None else ""
    return f"{_HALF[name]} {grouped(texts)}.{goal}"


def _table(name: str, styles: Sequence[VariantStyle], summaries: Summaries) -> Table:
    rows = [
        (style.name, *(duration(dig(summaries[style.name], f"{name}.{statistic}")) for statistic in _STATISTICS))
        for style in styles
    ]
    return Table(("variant", *_STATISTICS), tuple(rows))
