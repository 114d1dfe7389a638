"""Charts of a capacity page: statistics over their limits against the load, and staircases of replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.report.capacity_data import CapacityRow
from simserve.report.study_dims import Dim, Spec, dim, position, tip, valid, word_tip
from simserve.report.study_measures import Measure, interval_of
from simserve.report.study_ranges import marked_range
from simserve.report.style import VariantStyle
from simserve.report.words import dig, number

OVER = Measure("over", "share of the limit used")
NUM_TARGETS = 240
ATTAINMENTS = ("slo_attainment", "lowest_slo_attainment")
LEAST, MOST = 1e-3, 1e3  # what is drawn of a share of a limit


@dataclass(frozen=True)
class Slo:
    """A limit on a statistic and how its line is drawn."""

    key: str
    metric: str
    limit: float
    text: str
    style: VariantStyle

    def used(self, value: float | None) -> float | None:
        """The share of the limit that a figure uses, above 1 when it breaks the SLO. Attainment, which must be reached,
        uses (1 - attained) / (1 - wanted)."""
        if value is None or self.limit <= 0:
            return None
        used = (1 - value) / (1 - self.limit) if self.metric in ATTAINMENTS else value / self.limit
        return float(f"{min(MOST, max(LEAST, used)):.5g}")


def slo_dim(slos: Sequence[Slo], rows: Sequence[Mapping[str, Any]]) -> Dim:
    """One axis for all rows, with the limit inside; logarithmic when the lines span more than a factor of 30."""
    values = [row["y"] for one in rows for row in slo_rows(slos, one) if row["y"] is not None]
    log = min(values, default=1.0) > 0 and max(values, default=1.0) > 30 * min(values, default=1.0)
    return dim(OVER, "y", [*values, 1.0], log=log)


def slo_rows(slos: Sequence[Slo], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per point and SLO: the statistic over its limit with its interval."""
    return [
        {
            "load": float(point["load"]),
            "slo": slo.text,
            "k": slo.key,
            "g": bool(point["grows"]),
            "state": "grows" if point["grows"] else "does not grow",
            **_used(slo, interval_of(point["metrics"], slo.metric)),
        }
        for point in row["curve"]
        for slo in slos
    ]


def slo_chart(load: Dim, y: Dim, slos: Sequence[Slo], row: Mapping[str, Any]) -> Spec:
    """A line per SLO over the load, the limit at 1, the capacity and its interval shaded."""
    place = {"x": position(load), "y": {**position(y, grid=True)}}
    keys = [slo.key for slo in slos]
    color: Spec = {"field": "k", "type": "nominal", "legend": None}
    color |= {"scale": {"domain": keys, "range": [slo.style.color for slo in slos]}}
    dash = {**color, "scale": {"domain": keys, "range": [list(slo.style.dash) for slo in slos]}}
    low = {**place, "y": position(y, "low", True), "y2": {"field": y["high"]}, "color": color}
    hollow = {"condition": {"test": "datum.g", "value": "var(--surface)"}, **color}
    tips = [word_tip("slo", "SLO"), tip(load), tip(y), word_tip("interval", "95 %"), word_tip("state", "backlog")]
    capacity = row["load"] or {}
    layers: list[Spec] = [
        *marked_range(load, capacity, f"capacity {number(dig(row['capacity'] or {}, 'value'))}/s", "var(--accent)"),
        _limit(y),
        {"transform": [valid(y["low"])], "mark": {"type": "area", "opacity": 0.16, "clip": True}, "encoding": low},
        {
            "transform": [valid(y["field"])],
            "mark": {"type": "line", "strokeWidth": 2, "clip": True},
            "encoding": {**place, "color": color, "strokeDash": dash},
        },
        {
            "transform": [valid(y["field"]), {"calculate": y["interval"], "as": "interval"}],
            "mark": {"type": "point", "filled": True, "size": 45, "strokeWidth": 1.5, "opacity": 1, "clip": True},
            "encoding": {**place, "fill": hollow, "stroke": color, "tooltip": tips},
        },
    ]
    return {"width": "container", "height": 240, "data": {"values": _given(slo_rows(slos, row))}, "layer": layers}


def gpus_chart(rows: Sequence[CapacityRow], measure: Measure, price: float, target: float | None) -> Spec:
    """Staircases of the GPUs (times ``price``) over the rate to be carried, up to twice the target."""
    capacities = [row.number("capacity") or 0.0 for row in rows]
    end = 2 * target if target else 4 * max(capacities)
    grid = [end * (i + 1) / NUM_TARGETS for i in range(NUM_TARGETS)]
    values = [step for row in rows for step in _steps(row, grid, price)]
    x = {**dim(Measure("target", "requests/s to be carried"), "target", grid, log=False), "domain": [0, end]}
    y = dim(measure, "y", [value for step in values for value in (step["y"], step.get("yh")) if value])
    place = {"x": position(x), "y": position(y, grid=True)}
    styles = [row.style for row in rows]
    color: Spec = {"field": "v", "type": "nominal", "legend": None}
    color |= {"scale": {"domain": [s.key for s in styles], "range": [s.color for s in styles]}}
    dash = {**color, "scale": {"domain": [s.key for s in styles], "range": [list(s.dash) for s in styles]}}
    band = {**place, "y": position(y, "low", True), "y2": {"field": "yh"}, "color": color}
    tips = [word_tip("name", "variant"), tip(x), tip(y), word_tip("interval", "95 %")]
    layers: list[Spec] = [
        {
            "transform": [valid("yl")],
            "mark": {"type": "area", "opacity": 0.16, "interpolate": "step"},
            "encoding": band,
        },
        {
            "transform": [{"calculate": y["interval"], "as": "interval"}],
            "mark": {"type": "line", "strokeWidth": 2, "interpolate": "step"},
            "encoding": {**place, "color": color, "strokeDash": dash, "tooltip": tips},
        },
    ]
    if target:
        layers = [*marked_range(x, {"value": target}, f"target {number(target)}", "var(--ink)"), *layers]
    return {"width": "container", "height": 260, "data": {"values": values}, "layer": layers}


def _limit(y: Dim) -> Spec:
    """The line at 1."""
    rule = {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5}
    return {"data": {"values": [{"y": 1.0}]}, "mark": rule, "encoding": {"y": position({**y, "field": "y"}, grid=True)}}


def _steps(row: CapacityRow, grid: Sequence[float], price: float) -> list[dict[str, Any]]:
    """GPUs times price at each rate; fewest with the upper end of the capacity, most with the lower."""
    capacity = row.row["capacity"]
    each = price * (row.number("gpus_per_replica") or 1.0)
    ends = {"y": dig(capacity, "value"), "yl": dig(capacity, "high"), "yh": dig(capacity, "low")}
    steps = []
    for rate in grid:
        cells = {key: each * math.ceil(rate / end - 1e-12) for key, end in ends.items() if end}
        steps.append({"target": float(f"{rate:.5g}"), "v": row.style.key, "name": row.name, **cells})
    return steps


def _used(slo: Slo, interval: Mapping[str, Any]) -> dict[str, float | None]:
    """The share of the limit with its bounds, which change places where more is better."""
    low, high = ("high", "low") if slo.metric in ATTAINMENTS else ("low", "high")
    return {key: slo.used(dig(interval, end)) for key, end in (("y", "value"), ("yl", low), ("yh", high))}


def _given(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without their empty cells."""
    return [{key: value for key, value in row.items() if value is not None} for row in rows]
