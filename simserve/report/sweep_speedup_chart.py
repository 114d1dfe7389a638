"""A speed-up over a number: curves with bands, the formula thin, the line at 1 and where it is crossed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.study_dims import Dim, Spec, position, tip, valid, word_tip
from simserve.report.style import VariantStyle


def speedup_chart(
    x: Dim,
    y: Dim,
    styles: Sequence[VariantStyle],
    rows: Sequence[Mapping[str, Any]],
    marks: Sequence[Mapping[str, Any]],
) -> Spec:
    """Curves with their bands, the formula thin, the line at 1 and the break-evens on it with their ranges."""
    place = {"x": position(x), "y": position(y, grid=True)}
    scale = {"domain": [style.key for style in styles], "range": [style.color for style in styles]}
    color = {"field": "v", "type": "nominal", "scale": scale, "legend": None}
    dash = {**color, "scale": {**scale, "range": [list(style.dash) for style in styles]}}
    band = {**place, "y": position(y, "low", True), "y2": {"field": y["high"]}, "color": color}
    formula = {**place, "y": {**position(y, grid=True), "field": "f"}, "color": color}
    tips = [
        word_tip("variant", "variant"),
        tip(x),
        tip(y),
        word_tip("interval", "95 %"),
        tip({**y, "field": "f", "label": "formula"}),
    ]
    here = {"data": {"values": list(marks)}}
    ends = {"x": {**place["x"], "field": "xl"}, "x2": {"field": "xh"}, "color": color}
    layers: list[Spec] = [
        *_line_at_one(place),
        {**here, "transform": [valid("xl")], "mark": {"type": "rect", "opacity": 0.16}, "encoding": ends},
        {"transform": [valid(y["low"])], "mark": {"type": "area", "opacity": 0.16}, "encoding": band},
        {
            "transform": [valid("f")],
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.7},
            "encoding": formula,
        },
        {"mark": {"type": "line", "strokeWidth": 2.4}, "encoding": {**place, "color": color, "strokeDash": dash}},
        {"mark": {"type": "point", "filled": True, "size": 34, "opacity": 1}, "encoding": {**place, "color": color}},
        {
            **here,
            "mark": {
                "type": "point",
                "shape": "diamond",
                "size": 190,
                "strokeWidth": 2.5,
                "stroke": "var(--ink)",
                "opacity": 1,
            },
            "encoding": {**place, "tooltip": [word_tip("variant", "breaks even"), word_tip("at", "at")]},
        },
        {
            "transform": [{"calculate": y["interval"], "as": "interval"}],
            "mark": {"type": "point", "filled": True, "size": 140, "opacity": 0},
            "encoding": {**place, "tooltip": tips},
        },
    ]
    return {"width": "container", "height": 300, "data": {"values": list(rows)}, "layer": layers}


def _line_at_one(place: Mapping[str, Spec]) -> list[Spec]:
    at = {"data": {"values": [{"y": 1.0}]}}
    name = {
        "type": "text",
        "text": "break-even",
        "align": "right",
        "baseline": "top",
        "dy": 4,
        "color": "var(--ink-soft)",
    }
    right = {"x": {"value": "width"}, "y": place["y"]}
    rule = {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5}
    return [{**at, "mark": rule, "encoding": {"y": place["y"]}}, {**at, "mark": name, "encoding": right}]
