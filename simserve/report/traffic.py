"""The workload that every variant met: when requests arrived and how long they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from simserve.report.aggregate import (
    Floats,
    count_in_bins,
    is_skewed,
    log_ticks,
    quantile_curve,
    quantile_levels,
    rounded,
)
from simserve.report.figure import (
    Figure,
    Key,
    Table,
    data,
    duration_tip,
    finish,
    number_axis,
    number_tip,
    share_axis,
    share_tip,
    time_x,
)
from simserve.report.lines import hover_rules
from simserve.report.style import DASHES
from simserve.report.words import count, duration, plural, significant
from simserve.request import IntColumn, RequestTable
from simserve.step_time.stretch import NS_PER_S

MAX_BINS = 120
_COLORS = ("var(--kv-used)", "var(--accent)")
_LENGTHS = {"prompt": "num_prompt_tokens", "output": "num_output_tokens"}


def traffic_figures(table: RequestTable) -> list[Figure]:
    """Arrivals over time (unless all came at once) and lengths of prompts and outputs."""
    figures = [_arrivals(table)] if len(table) > 1 and table.arrival_ns[-1] > table.arrival_ns[0] else []
    return [*figures, _lengths(table)] if len(table) else []


def traffic_sentence(table: RequestTable, concurrency: int | None = None) -> str:
    """The workload in a sentence; ``concurrency`` clients in a closed loop sent it, if any."""
    if not len(table):
        return "No requests."
    span_s = float(table.arrival_ns[-1] - table.arrival_ns[0]) / NS_PER_S
    prompts, outputs = int(table.num_prompt_tokens.sum()), int(table.num_output_tokens.sum())
    when = f"over {duration(span_s)}" if span_s else "all at once"
    if concurrency is not None:
        when = f"from {plural(concurrency, 'client')} in a closed loop"
    what = plural(len(table), "request")
    if table.session is not None:
        what += f" in {plural(len(np.unique(table.session[table.session >= 0])), 'session')}"
    return f"{what} {when}, {prompts:,} prompt tokens, {outputs:,} output tokens"


def _arrivals(table: RequestTable) -> Figure:
    seconds = (table.arrival_ns - table.arrival_ns[0]) / NS_PER_S
    num_bins = int(np.clip(len(table) // 4, 12, MAX_BINS))
    edges, counts = count_in_bins(seconds, num_bins)
    width = float(edges[1] - edges[0])
    begin, end, rates = rounded(edges[:-1], 7), rounded(edges[1:], 7), rounded(counts / width)
    rows = [
        {"begin": b, "end": e, "count": int(c), "rate": r} for b, e, c, r in zip(begin, end, counts, rates, strict=True)
    ]
    time = time_x("begin", float(edges[-1]))
    tooltip = [duration_tip("begin", "from"), number_tip("count", "arrivals")]
    rate = alt.Y("rate:Q", axis=number_axis("requests per second", ticks=5, grid=True), scale=alt.Scale(zero=True))
    marks = alt.Chart(data(rows)).mark_bar(color="var(--kv-used)", stroke="var(--surface)", strokeWidth=0.5)
    bars = marks.encode(time, alt.X2("end:Q"), rate, y2=alt.datum(0), tooltip=tooltip)
    gaps = np.diff(table.arrival_ns) / NS_PER_S
    spread = float(gaps.std() / gaps.mean())
    caption = (
        f"{significant(float(1 / gaps.mean()))} requests per second on average; gaps between arrivals vary with a "
        f"coefficient of {significant(spread, 2)} (0 for a metronome, 1 for Poisson arrivals, more for bursts)."
        + (" Turns that wait for an answer stand at the earliest they can come." if table.session is not None else "")
    )
    return Figure("traffic-arrivals", "Arrivals", caption, finish(bars, 200))


def _lengths(table: RequestTable) -> Figure:
    levels = quantile_levels()
    columns: dict[str, IntColumn] = {name: getattr(table, column) for name, column in _LENGTHS.items()}
    curves = {name: quantile_curve(values, levels) for name, values in columns.items()}
    caption = "; ".join(
        f"{name}s: median {count(float(np.median(values)))}, longest {count(float(values.max()))} tokens"
        for name, values in columns.items()
    )
    rows = tuple(
        (name, *(count(float(np.quantile(values, q))) for q in (0, 0.5, 0.9, 0.99, 1)), count(float(values.sum())))
        for name, values in columns.items()
    )
    head = ("tokens", "shortest", "p50", "p90", "p99", "longest", "sum")
    spec = _lengths_spec(levels, curves)
    drawn = zip(_LENGTHS, _COLORS, DASHES, strict=False)
    keys = tuple(Key(name, color, " ".join(map(str, dash))) for name, color, dash in drawn)
    return Figure("traffic-lengths", "Lengths", f"{caption.capitalize()}.", spec, Table(head, rows), "", keys)


def _lengths_spec(levels: Floats, curves: dict[str, Floats]) -> dict[str, Any]:
    shares = rounded(levels)
    columns = [rounded(curves[name]) for name in _LENGTHS]
    rows = [{"p": p, "prompt": a, "output": b} for p, a, b in zip(shares, *columns, strict=True)]
    names = list(_LENGTHS)
    colors = alt.Scale(domain=names, range=list(_COLORS))
    lines = alt.Chart().transform_fold([*names], as_=["of", "value"]).mark_line()
    drawn = lines.encode(
        alt.Y("p:Q", axis=share_axis("share at or below", grid=True), scale=alt.Scale(domain=[0, 1])),
        _tokens_axis(np.concatenate([curves[name] for name in names])),
        alt.Color("of:N", scale=colors, legend=None),
        alt.StrokeDash("of:N", scale=alt.Scale(domain=names, range=[list(DASHES[0]), list(DASHES[1])]), legend=None),
        alt.Order("p:Q"),
    )
    tooltip = [share_tip("p", "share of requests"), *(number_tip(name, name) for name in names)]
    return finish(alt.layer(drawn, hover_rules("y", "p", tooltip), data=data(rows)), 200)


def _tokens_axis(values: Sequence[float] | Floats) -> alt.X:
    positive = np.asarray(values)[np.asarray(values) > 0]
    if not is_skewed(positive.tolist()):
        return alt.X("value:Q", axis=number_axis("tokens"), scale=alt.Scale(zero=True))
    low, high = float(positive.min()) * 0.9, float(positive.max()) * 1.1
    axis = number_axis("tokens, logarithmic", log_ticks(low, high, 8))
    return alt.X("value:Q", axis=axis, scale=alt.Scale(type="log", domain=[low, high], nice=False, clamp=True))
