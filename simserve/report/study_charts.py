"""Charts of studies as Vega-Lite: curves with intervals, dots with ranges, the Pareto front. Rows come from the page's
own tables ``points`` and ``knees``, which it holds once for all charts.

Axes are ``study_dims.Dim``: true ones, or the places of a control. Specifications are written as they are embedded,
without Altair, which would take a control's places for mistakes; the tests check the filled ones against the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.report.study_dims import Dim, Spec, position, tip, valid, word_tip
from simserve.report.style import VariantStyle

POINTS, KNEES = {"name": "points"}, {"name": "knees"}
_NAME = 20  # pixels for the name of a line
Group = int | str | None  # of settings: a number, or the place of a control; None for all


def trade_off(x: Dim, y: Dim, load: Dim, styles: Sequence[VariantStyle], group: Group, crowded: bool = False) -> Spec:
    """Curves in the order of load, with error bars of ``y``, hollow points where the backlog grows, and the knees."""
    drawn = [*_in_group(group), valid(y["field"]), valid(x["field"])]
    place = {"x": position(x), "y": position(y, grid=True)}
    bars = {
        "transform": [*drawn, valid(y["low"])],
        "mark": {"type": "rule", "strokeWidth": 1 if crowded else 1.5, "opacity": 0.25 if crowded else 0.55},
        "encoding": {**place, "y": position(y, "low", True), "y2": {"field": y["high"]}, "color": by_variant(styles)},
    }
    layers = [bars, _lines(drawn, place, styles), _dots(drawn, place, styles, 9 if crowded else 55), _knees(place)]
    layers[-1]["transform"] = drawn
    layers.append(_targets([*drawn, _intervals(y)], place, [tip(load), tip(x), tip(y)]))
    return _finished(layers, 300)


def against_load(
    load: Dim, y: Dim, styles: Sequence[VariantStyle], group: Group, crowded: bool = False, runs: bool = True
) -> Spec:
    """Curves over the load with their 95 % bands, hollow points where the backlog grows, and a rule at each knee.
    ``runs``: a click on a point opens its run."""
    drawn = [*_in_group(group), valid(y["field"])]
    place = {"x": position(load), "y": position(y, grid=True)}
    band = {
        "transform": [*drawn, valid(y["low"])],
        "mark": {"type": "area", "opacity": 0.16},
        "encoding": {**place, "y": position(y, "low", True), "y2": {"field": y["high"]}, "color": by_variant(styles)},
    }
    rules = {
        "data": KNEES,
        "transform": _in_group(group),
        "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.8},
        "encoding": {"x": place["x"], "color": by_variant(styles), "strokeDash": _dashes(styles)},
    }
    layers = [band, rules, _lines(drawn, place, styles), _dots(drawn, place, styles, 8 if crowded else 34)]
    layers.append(_targets([*drawn, _intervals(y)], place, [tip(load), tip(y)], runs))
    return _finished(layers, 230)


def front(x: Dim, y: Dim, styles: Sequence[VariantStyle]) -> Spec:
    """Every point by what it gives and what it costs: those that no other beats stand out and are joined."""
    drawn = [valid(y["field"]), valid(x["field"])]
    place = {"x": position(x), "y": position(y, grid=True)}
    best = {"filter": "datum.p"}
    line = {
        "transform": [*drawn, best],
        "mark": {"type": "line", "color": "var(--ink-soft)", "strokeWidth": 1.5, "interpolate": "step-before"},
        "encoding": {**place, "order": {"field": x["field"], "type": "quantitative"}},
    }
    faint = _dots([*drawn, {"filter": "!datum.p"}], place, styles, 55)
    faint["mark"]["opacity"] = 0.28
    layers = [line, faint, _dots([*drawn, best], place, styles, 55)]
    layers.append(_targets([*drawn, _intervals(y)], place, [tip(x), tip(y)]))
    return _finished(layers, 320)


def dots_and_ranges(x: Dim, rows: Sequence[str], styles: Sequence[VariantStyle], per_row: int) -> Spec:
    """One line of dots with their intervals per setting, the variants side by side; what is not sustained is hollow."""
    drawn = [valid(x["field"]), {"filter": {"field": "settings", "oneOf": list(rows)}}]
    lines, names, height = lines_of("settings", rows, per_row)
    place = {"x": position(x, grid=True), "y": lines, "yOffset": _beside(styles)}
    ranges = {
        "transform": [*drawn, valid(x["low"])],
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.6},
        "encoding": {**place, "x": position(x, "low", True), "x2": {"field": x["high"]}, "color": by_variant(styles)},
    }
    layers = [names, ranges, _dots(drawn, place, styles, 60), _targets([*drawn, _intervals(x)], place, [tip(x)])]
    return _finished(layers, 45 + round(height))


def bars_of_shares(rows: Sequence[Spec], styles: Sequence[VariantStyle]) -> Spec:
    """Bars of ``share`` over ``batch``, the variants side by side."""
    axis = {"title": "batch size", "grid": False, "labelAngle": 0, "format": ","}
    share = {"title": "share of the draws", "format": ".0%", "tickCount": 5, "grid": True}
    encoding = {
        "x": {"field": "batch", "type": "ordinal", "axis": axis},
        "y": {"field": "share", "type": "quantitative", "axis": share, "scale": {"domain": [0, 1]}},
        "xOffset": _beside(styles),
        "color": by_variant(styles),
        "tooltip": [
            word_tip("variant", "variant"),
            word_tip("batch", "batch"),
            {"field": "share", "type": "quantitative", "title": "draws", "format": ".1%"},
        ],
    }
    return {"width": "container", "height": 200, "data": {"values": list(rows)}, "mark": "bar", "encoding": encoding}


def lines_of(field: str, order: Sequence[str], per_line: int) -> tuple[Spec, Spec, float]:
    """A vertical place per name, a layer that writes each name above its line, where it has the whole width, and the
    height of all lines when ``per_line`` marks stand on each."""
    pitch = _NAME + max(16, 13 * per_line)
    gap = _NAME / pitch
    scale = {"type": "band", "domain": list(order), "paddingInner": gap, "paddingOuter": gap}
    place = {"field": field, "type": "nominal", "scale": scale, "axis": None}
    names = {
        "data": {"values": [{field: name} for name in order]},
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "fontSize": 12, "color": "var(--ink-soft)"},
        "encoding": {"y": {**place, "bandPosition": 0}, "x": {"value": 2}, "text": {"field": field, "type": "nominal"}},
    }
    return place, names, pitch * (len(order) + gap)


def by_variant(styles: Sequence[VariantStyle]) -> Spec:
    """Each variant's own colour."""
    scale = {"domain": [style.key for style in styles], "range": [style.color for style in styles]}
    return {"field": "v", "type": "nominal", "scale": scale, "legend": None}


def _dashes(styles: Sequence[VariantStyle]) -> Spec:
    scale = {"domain": [style.key for style in styles], "range": [list(style.dash) for style in styles]}
    return {"field": "v", "type": "nominal", "scale": scale, "legend": None}


def _by_place(styles: Sequence[VariantStyle], values: Sequence[float]) -> Spec:
    """Earlier variants are drawn larger than those that may cover them, so that of two that coincide both are seen."""
    ends = [round(values[0], 2), round(values[-1], 2)]  # Vega-Lite fills in between
    scale = {"domain": [style.key for style in styles], "range": ends}
    return {"field": "v", "type": "ordinal", "scale": scale, "legend": None}


def _beside(styles: Sequence[VariantStyle]) -> Spec:
    return {"field": "v", "type": "nominal", "scale": {"domain": [style.key for style in styles], "paddingOuter": 0.6}}


def _in_group(group: Group) -> list[Spec]:
    return [] if group is None else [{"filter": {"field": "s", "equal": group}}]


def _intervals(y: Dim) -> Spec:
    return {"calculate": y["interval"], "as": "interval"}


def _lines(drawn: Sequence[Spec], place: Spec, styles: Sequence[VariantStyle]) -> Spec:
    return {
        "transform": list(drawn),
        "mark": {"type": "line", "clip": True},
        "encoding": {
            **place,
            "color": by_variant(styles),
            "strokeDash": _dashes(styles),
            "strokeWidth": _by_place(styles, [style.width for style in styles]),
            "order": {"field": "load", "type": "quantitative"},
        },
    }


def _dots(drawn: Sequence[Spec], place: Spec, styles: Sequence[VariantStyle], size: int) -> Spec:
    color = by_variant(styles)
    sizes = [size * (1.6 - i / len(styles)) if len(styles) > 1 else size for i in range(len(styles))]
    hollow = {"condition": {"test": "datum.g", "value": "var(--surface)"}, **color}
    return {
        "transform": list(drawn),
        "mark": {"type": "point", "filled": True, "strokeWidth": 1.5, "opacity": 1},
        "encoding": {**place, "fill": hollow, "stroke": color, "size": _by_place(styles, sizes)},
    }


def _knees(place: Spec) -> Spec:
    return {
        "data": KNEES,
        "mark": {
            "type": "point",
            "shape": "diamond",
            "size": 190,
            "filled": False,
            "strokeWidth": 2.5,
            "stroke": "var(--ink)",
            "opacity": 1,
        },
        "encoding": {**place, "tooltip": [word_tip("variant", "knee of"), word_tip("at", "at")]},
    }


def _targets(drawn: Sequence[Spec], place: Spec, tips: Sequence[Spec], runs: bool = True) -> Spec:
    """Unseen and larger than the points: what the pointer meets. Points of a sweep have settings and a run each."""
    settings = [word_tip("settings", "settings")] if runs else []
    opens = [word_tip("opens", "click opens")] if runs else []
    told = [
        word_tip("variant", "variant"),
        *settings,
        *tips,
        word_tip("interval", "95 %"),
        word_tip("state", "backlog"),
    ]
    mark = {"type": "point", "filled": True, "size": 140, "opacity": 0}
    return {
        "transform": [*drawn, {"calculate": "datum.r ? 'its report' : 'its command'", "as": "opens"}],
        "mark": {**mark, "cursor": "pointer" if runs else "default"},
        "encoding": {**place, "tooltip": [*told, *opens]},
    }


def _finished(layers: list[Spec], height: int) -> dict[str, Any]:
    return {"width": "container", "height": height, "data": POINTS, "layer": layers}
