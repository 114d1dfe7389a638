"""Small charts of estimates: a dot with its range per line, and the shaded places of estimates on a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.study_charts import lines_of
from simserve.report.study_dims import Dim, Spec, dim, position, tip, valid, word_tip
from simserve.report.study_measures import Measure
from simserve.report.words import dig

SHAPES = ("circle", "diamond", "square", "triangle-up")


@dataclass(frozen=True)
class Estimate:
    """A dot on the line ``row``: an interval, what it is, and how it is drawn."""

    row: str
    interval: Mapping[str, Any]
    what: str
    color: str
    shape: str = SHAPES[0]


def estimate_dim(measure: Measure, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """An axis that holds all of the estimates with their ranges."""
    values = [dig(one.interval, key) for one in estimates for key in ("value", "low", "high")]
    return dim(measure, "x", [value for value in values if value is not None])


def estimate_chart(measure: Measure, estimates: Sequence[Estimate]) -> Spec:
    """Dots with their 95 % ranges, one line per ``row``, in the order given; estimates of a line side by side."""
    x = estimate_dim(measure, estimates)
    order = list(dict.fromkeys(one.row for one in estimates))
    kinds = list(dict.fromkeys(one.what for one in estimates))
    lines, names, height = lines_of("row", order, len(kinds))
    beside = {"yOffset": {"field": "what", "type": "nominal", "scale": {"domain": kinds, "paddingOuter": 0.8}}}
    place = {"x": position(x, grid=True), "y": lines, **(beside if len(kinds) > 1 else {})}
    color = {"field": "color", "type": "nominal", "scale": None}
    shape = {"field": "shape", "type": "nominal", "scale": None}
    ranges = {
        "transform": [valid("xl")],
        "mark": {"type": "rule", "strokeWidth": 2.5, "opacity": 0.55},
        "encoding": {**place, "x": position(x, "low", True), "x2": {"field": "xh"}, "color": color},
    }
    dots = {
        "transform": [{"calculate": x["interval"], "as": "interval"}],
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {
            **place,
            "color": color,
            "shape": shape,
            "tooltip": [word_tip("row", "row"), word_tip("what", "estimate"), tip(x), word_tip("interval", "95 %")],
        },
    }
    layers = [names, ranges, dots]
    return {"width": "container", "height": 45 + round(height), "data": {"values": _rows(estimates)}, "layer": layers}


def marked_range(x: Dim, interval: Mapping[str, Any], text: str, color: str, line: int = 0) -> list[Spec]:
    """An estimate on a curve: its range shaded, a rule at its value, and its name in the ``line``-th line above the
    chart, on the side of the rule that has room for it."""
    value, low, high = (dig(interval, key) for key in ("value", "low", "high"))
    if value is None:
        return []
    at = {"data": {"values": [{"x": value, "xl": low, "xh": high}]}}
    here = position({**x, "field": "x"})
    layers: list[Spec] = []
    if low is not None and high is not None and high > low:
        ends = {"x": {**here, "field": "xl"}, "x2": {"field": "xh"}}
        layers.append({**at, "mark": {"type": "rect", "color": color, "opacity": 0.16}, "encoding": ends})
    rule = {"mark": {"type": "rule", "color": color, "strokeWidth": 2, "strokeDash": [5, 3]}, "encoding": {"x": here}}
    align = "left" if value < sum(x["domain"]) / 2 else "right"
    name = {"type": "text", "text": text, "color": color, "baseline": "bottom", "fontSize": 12, "align": align}
    above = {"x": here, "y": {"value": -4 - 16 * line}}
    return [*layers, {**at, **rule}, {**at, "mark": name, "encoding": above}]


def _rows(estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    rows = []
    for one in estimates:
        cells = {"x": dig(one.interval, "value"), "xl": dig(one.interval, "low"), "xh": dig(one.interval, "high")}
        words = {"row": one.row, "what": one.what, "color": one.color, "shape": one.shape}
        if cells["x"] is not None:
            rows.append({**words, **{key: float(f"{v:.5g}") for key, v in cells.items() if v is not None}})
    return rows
