"""The charts of a validation: errors with noise, both sides' distributions, and both over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from simserve.report.aggregate import Floats, linear_ticks
from simserve.report.figure import (
    Figure,
    Key,
    data,
    duration_tip,
    finish,
    number_axis,
    number_tip,
    time_x,
)
from simserve.report.latency import TITLES, quantile_chart
from simserve.report.lines import grid_rows, variant_lines
from simserve.report.style import VariantStyle
from simserve.report.validate_words import error_text, in_order, label, noise_text, value_text, verdict

Curves = Mapping[str, Any]
Entry = Mapping[str, Any]
COLORS = {"fine": "var(--c2)", "off": "var(--c3)"}
WORDS = {"fine": "close, or within noise", "off": "further off"}
SIDES = ("measured", "predicted")
ROW_PX = 22
WIDEST = 1.0  # errors beyond ±100 % are drawn at the edge
_PERCENT = "datum.value == 0 ? '0 %' : replace(format(100 * datum.value, '+.3~'), '-', '−') + ' %'"
_FINE = ("the same", "within noise", "close")
_OVER_TIME = {
    "output_tokens_per_s": "Output tokens per second",
    "num_waiting": "Requests that wait for their first token",
    "num_producing": "Requests that produce tokens",
}


def error_figure(entries: Mapping[str, Entry], max_error: float | None) -> Figure | None:
    """Every error as a mark beside a bar of the noise round zero; None where no error is known."""
    known = {name: one for name, one in in_order(entries).items() if one["error"] is not None}
    if not known:
        return None
    rows = [_error_row(name, one, max_error) for name, one in known.items()]
    reach = error_reach([*(row["error"] for row in rows), *(row["high"] for row in rows), max_error or 0.0])
    for row in rows:
        row |= {end: min(max(row[end], -reach), reach) for end in ("error", "low", "high")}
    ticks = _error_ticks(reach)
    scale = alt.Scale(domain=[-reach, reach], nice=False, clamp=True)
    axis = alt.Axis(title="error: predicted over measured, less one", values=ticks, grid=True, labelExpr=_PERCENT)
    y = alt.Y(
        "label:N",
        sort=[row["label"] for row in rows],
        axis=alt.Axis(title=None, labelLimit=170, domain=False, ticks=False, grid=True),
    )
    tips = [
        alt.Tooltip(f"{field}:N", title=title)
        for field, title in (
            ("label", "figure"),
            ("measured", "measured"),
            ("predicted", "predicted"),
            ("text", "error"),
            ("noise", "noise"),
            ("words", "so"),
        )
    ]
    base = alt.Chart().encode(y, tooltip=tips)
    at = alt.X("at:Q", scale=scale)
    zero = alt.Chart(data([{"at": 0}])).mark_rule(color="var(--ink)", strokeWidth=1.5).encode(at)
    layers: list[alt.Chart] = [zero]
    if max_error is not None:
        limits = alt.Chart(data([{"at": -max_error}, {"at": max_error}]))
        layers.append(limits.mark_rule(color="var(--ink-soft)", strokeDash=[4, 3]).encode(at))
    bars = base.mark_rule(strokeWidth=8, opacity=0.3, color="var(--ink-soft)")
    layers.append(bars.encode(alt.X("low:Q", scale=scale, axis=axis), alt.X2("high:Q")))
    marks = base.mark_point(filled=True, size=70, opacity=1, shape="diamond")
    color = alt.Color("color:N", scale=None, legend=None)
    layers.append(marks.encode(alt.X("error:Q", scale=scale, axis=axis), color))
    used = {row["tone"] for row in rows}
    keys = [Key(WORDS[tone], COLORS[tone], "1 0") for tone in WORDS if tone in used]
    return Figure(
        "errors",
        "Errors and the real engine's own noise",
        _error_caption(rows, max_error),
        finish(alt.layer(*layers, data=data(rows)), ROW_PX * len(rows)),
        keys=tuple(keys),
        wide=True,
    )


def error_reach(values: Sequence[float]) -> float:
    """Half the width of the axis of errors: all of them with some room, at least 1 %, at most ``WIDEST``."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return min(max(1.15 * largest, 0.01), WIDEST)


def latency_figures(curves: Curves, entries: Mapping[str, Entry], styles: Sequence[VariantStyle]) -> list[Figure]:
    """Both sides' distributions of TTFT, TPOT, E2E and ITL, overlaid; a latency that one lacks gets no figure."""
    levels = np.array(curves["levels"], np.float64)
    figures = []
    for name, sides in curves["latencies"].items():
        columns = _columns(sides, styles)
        if all(np.isfinite(column).any() for column in columns.values()):
            chart = quantile_chart(levels, columns, styles)
            figures.append(Figure(f"curve-{name}", TITLES[name], _caption(name, entries), chart))
    return figures


def over_time_figures(curves: Curves, styles: Sequence[VariantStyle]) -> list[Figure]:
    """What both sides did over time: tokens, who waited, who produced."""
    time_s = np.array(curves["over_time"]["time_s"], np.float64)
    end_s = float(time_s[-1] + time_s[0])
    return [
        _over_time(name, title, time_s, end_s, _columns(curves["over_time"][name], styles), styles)
        for name, title in _OVER_TIME.items()
    ]


def _columns(sides: Mapping[str, Any], styles: Sequence[VariantStyle]) -> dict[str, Floats]:
    return {style.key: np.array(sides[side], np.float64) for style, side in zip(styles, SIDES, strict=True)}


def _over_time(
    name: str, title: str, time_s: Floats, end_s: float, columns: Mapping[str, Floats], styles: Sequence[VariantStyle]
) -> Figure:
    tips = [duration_tip("t", "time"), *(number_tip(style.key, style.name) for style in styles)]
    y = alt.Y("value:Q", axis=number_axis("", ticks=5, grid=True), scale=alt.Scale(zero=True))
    chart = variant_lines(grid_rows("t", time_s, columns), styles, time_x("t", end_s), y, tips)
    first, second = (columns[style.key] for style in styles)
    apart = float(np.abs(first - second).sum() / max(float(np.abs(first).sum()), 1e-12))
    caption = f"Between the curves lies {apart:.1%} of the area below the measured one."
    return Figure(f"time-{name}", title, caption, finish(chart, 240))


def _error_row(name: str, one: Entry, max_error: float | None) -> dict[str, Any]:
    words = verdict(one, max_error)
    noise = one["noise"] or 0.0
    tone = "fine" if words in _FINE else "off"
    return {
        "label": label(name),
        "measured": value_text(name, one["measured"]),
        "predicted": value_text(name, one["predicted"]),
        "text": error_text(one["error"]),
        "noise": noise_text(one["noise"]),
        "words": words,
        "error": one["error"],
        "low": -noise,
        "high": noise,
        "tone": tone,
        "color": COLORS[tone],
    }


def _error_ticks(reach: float) -> list[float]:
    half = linear_ticks(reach, 3)
    return [*(-tick for tick in half[:0:-1]), *half]


def _error_caption(rows: Sequence[Mapping[str, Any]], max_error: float | None) -> str:
    fine = sum(row["tone"] == "fine" for row in rows)
    far = max(rows, key=lambda row: abs(row["error"]))
    limit = f" Dashed lines mark the limit of {max_error:.3g}." if max_error is not None else ""
    return (
        f"Of {len(rows)} figures {fine} are within 2 % or within noise; the furthest off is {far['label']} "
        f"({far['text']}). Grey bars are the noise.{limit}"
    )


def _caption(name: str, entries: Mapping[str, Entry]) -> str:
    parts = []
    for statistic, words in (("p50", "half"), ("p99", "99 of 100")):
        one = entries[f"{name}.{statistic}"]
        both = " measured, ".join(value_text(name, one[side]) for side in SIDES)
        parts.append(f"{words} within {both} predicted ({error_text(one['error'])})")
    return f"{'; '.join(parts)}."[:1].upper() + f"{'; '.join(parts)}."[1:]
