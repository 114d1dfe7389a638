"""The charts of a comparison: ratios with their intervals, distributions of both runs, each request in both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from simserve.report.aggregate import log_ticks
from simserve.report.compare_words import (
    VERDICTS,
    interval_text,
    label,
    pair_name,
    ratio_text,
    value_text,
    verdict_text,
)
from simserve.report.figure import Figure, Key, TopChart, data, duration_axis, duration_tip, finish, number_tip
from simserve.report.latency import TITLES, quantile_chart
from simserve.report.style import VariantStyle
from simserve.report.words import plural

Pair = Mapping[str, Any]
COLORS = {"better": "var(--c2)", "worse": "var(--c3)", "different": "var(--c0)"}
PLAIN = "var(--ink-soft)"
ROW_PX = 24
WIDEST = 1000.0  # a ratio beyond this or its inverse is drawn at the edge


def ratio_figure(index: int, pair: Pair) -> Figure | None:
    """Every ratio B/A on a logarithmic axis, with its interval and 1 marked; None where there is no ratio."""
    rows = [_row(name, metric) for name, metric in pair["metrics"].items() if metric["ratio"]]
    if not rows:
        return None
    low, high = ratio_domain(rows)
    for row in rows:
        row |= {end: min(max(row[end], low), high) for end in ("ratio", "from", "to")}
    x = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    axis = alt.Axis(
        title="B/A, logarithmic scale",
        values=ratio_ticks(low, high),
        labelExpr="format(datum.value, '.3~g') + '×'",
        grid=True,
    )
    order = [row["label"] for row in rows]
    y = alt.Y("label:N", sort=order, axis=alt.Axis(title=None, labelLimit=170, domain=False, ticks=False, grid=True))
    color = alt.Color("color:N", scale=None, legend=None)
    tips = [
        alt.Tooltip(f"{field}:N", title=title)
        for field, title in (("label", "measure"), ("a", "A"), ("b", "B"), ("text", "B/A"), ("words", "so"))
    ]
    base = alt.Chart().encode(y, color, tooltip=tips)
    one = alt.Chart(data([{"at": 1}])).mark_rule(color="var(--ink)", strokeWidth=1.5).encode(alt.X("at:Q", scale=x))
    bars = base.transform_filter("datum.bounded").mark_rule(strokeWidth=4, opacity=0.55, strokeCap="round")
    marks = base.mark_point(filled=True, size=70, opacity=1).encode(
        alt.X("ratio:Q", scale=x, axis=axis), shape=alt.Shape("shape:N", scale=None, legend=None)
    )
    chart = alt.layer(one, bars.encode(alt.X("from:Q", scale=x, axis=axis), alt.X2("to:Q")), marks, data=data(rows))
    used = {str(row["verdict"]) for row in rows}
    keys = [Key(VERDICTS[word], COLORS.get(word, PLAIN), "1 0") for word in VERDICTS if word in used]
    return Figure(
        f"ratios-{index}",
        "Ratios B/A with 95 % intervals",
        _ratio_caption(pair, rows),
        finish(chart, ROW_PX * len(rows)),
        keys=tuple(keys),
        wide=True,
    )


def ratio_domain(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Ends of the axis: all ratios and bounds with some room, 1 inside, not beyond ``WIDEST``."""
    ends = [row[end] for row in rows for end in ("ratio", "from", "to") if 0 < row[end] < math.inf]
    low, high = min(*ends, 1 / 1.1), max(*ends, 1.1)
    room = (high / low) ** 0.04
    return max(low / room, 1 / WIDEST), min(high * room, WIDEST)


def ratio_ticks(low: float, high: float) -> list[float]:
    """Ticks for ratios, 1 among them: even steps where the axis spans little, else 1-2-5."""
    if high / low > 5:
        return sorted({*log_ticks(low, high, 9), 1.0})
    step = next(s for s in (0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0) if (high - low) / s <= 9)
    first, last = math.ceil((low - 1) / step - 1e-9), math.floor((high - 1) / step + 1e-9)
    return [round(1 + i * step, 6) for i in range(first, last + 1)]


def distribution_figures(index: int, pair: Pair, styles: Sequence[VariantStyle]) -> list[Figure]:
    """Quantile curves of A and B for each latency that the document holds."""
    figures = []
    levels = np.array(pair["curves"]["levels"], np.float64)
    for name, curve in _latencies(pair).items():
        columns = {style.key: np.array(curve[side], np.float64) for style, side in zip(styles, ("a", "b"), strict=True)}
        drawn = [style for style in styles if np.isfinite(columns[style.key]).any()]
        if drawn:
            columns = {style.key: columns[style.key] for style in drawn}
            caption = f"{TITLES[name]}: {_both(pair, f'{name}.p50')} for half of the requests, "
            caption += f"{_both(pair, f'{name}.p99')} for 99 of 100."
            spec = quantile_chart(levels, columns, drawn)
            figures.append(Figure(f"curve-{index}-{name}", TITLES[name], caption, spec))
    return figures


def scatter_figures(index: int, pair: Pair) -> list[Figure]:
    """Each request's latency in A against B, where both met the same requests."""
    figures = []
    for name, curve in _latencies(pair).items():
        points = curve["points"]
        if points:
            figures.append(
                Figure(
                    f"scatter-{index}-{name}",
                    f"{TITLES[name]}, request by request",
                    _scatter_caption(points),
                    _scatter(points),
                )
            )
    return figures


def _row(name: str, metric: Mapping[str, Any]) -> dict[str, Any]:
    bounded = metric["low"] is not None or metric["high"] is not None
    ratio = metric["ratio"]
    low = metric["low"] if metric["low"] is not None else 0.0 if bounded else ratio
    high = metric["high"] if metric["high"] is not None else math.inf if bounded else ratio
    return {
        "label": label(name),
        "a": value_text(name, metric["a"]),
        "b": value_text(name, metric["b"]),
        "text": f"{ratio_text(metric)} ({interval_text(metric)})" if bounded else ratio_text(metric),
        "words": verdict_text(metric) or "no interval",
        "verdict": metric["verdict"],
        "ratio": ratio,
        "from": low,
        "to": high,
        "bounded": bounded,
        "color": COLORS.get(metric["verdict"], PLAIN),
        "shape": "diamond" if bounded else "cross",
    }


def _ratio_caption(pair: Pair, rows: Sequence[Mapping[str, Any]]) -> str:
    words = [str(row["verdict"]) for row in rows]
    counts = [
        f"{words.count(verdict)} {text}"
        for verdict, text in (
            ("better", "better in B"),
            ("worse", "worse in B"),
            ("unclear", "with no clear difference"),
            ("same", "the same"),
        )
        if verdict in words
    ]
    without = words.count("None")
    if without:
        counts.append(f"{without} without an interval (crosses)")
    measures = plural(len(rows), "measure")
    return f"Of {measures} of {pair_name(pair)}: {', '.join(counts)}. The dark line marks 1: no change."


def _scatter(points: Sequence[Sequence[float]]) -> dict[str, Any]:
    values = [value for point in points for value in point[:2]]
    low, high = min(values) * 0.9, max(values) * 1.1
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    ticks = log_ticks(low, high, 6)
    rows = [{"a": a, "b": b, "n": n} for a, b, n in points]
    most = max(n for _, _, n in points)
    opacity = alt.Opacity(
        "n:Q", scale=alt.Scale(type="log", domain=[1, max(most, 2)], range=[0.35 if most > 1 else 0.7, 1]), legend=None
    )
    x = alt.X("a:Q", scale=scale, axis=duration_axis("in A, logarithmic scale", ticks, grid=True))
    y = alt.Y("b:Q", scale=scale, axis=duration_axis("in B", ticks, grid=True))
    tips = [duration_tip("a", "in A"), duration_tip("b", "in B"), number_tip("n", "requests")]
    dots = alt.Chart(data(rows)).mark_circle(size=36 if most > 1 else 44, color="var(--c0)")
    ends = data([{"a": low, "b": low}, {"a": high, "b": high}])
    diagonal = alt.Chart(ends).mark_line(strokeDash=[4, 3], strokeWidth=1.5, color="var(--ink-soft)")
    chart: TopChart = alt.layer(diagonal.encode(x, y), dots.encode(x, y, opacity, tooltip=tips))
    return finish(chart, 300)


def _scatter_caption(points: Sequence[Sequence[float]]) -> str:
    total = sum(n for *_, n in points)
    slower = sum(n for a, b, n in points if b > a)
    faster = sum(n for a, b, n in points if b < a)
    squares = " Darker marks stand for more requests." if total > len(points) else ""
    return (
        f"{plural(int(total), 'request')} answered in both runs: {slower / total:.0%} slower in B (above the dashed "
        f"line), {faster / total:.0%} faster (below it).{squares}"
    )


def _latencies(pair: Pair) -> dict[str, Mapping[str, Any]]:
    return {name: curve for name, curve in pair["curves"].items() if name != "levels"}


def _both(pair: Pair, name: str) -> str:
    metric = pair["metrics"][name]
    return f"{value_text(name, metric['a'])} in A and {value_text(name, metric['b'])} in B"
