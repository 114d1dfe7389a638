"""A sweep's document as the tables behind its charts: points, knees, groups of settings, axes of measures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simserve.report.aggregate import is_skewed
from simserve.report.study_dims import Dim, dim
from simserve.report.study_measures import FAMILIES, STATISTICS, Measure, interval_of, known
from simserve.report.study_words import last_words, load_measure, settings_text
from simserve.report.style import VariantStyle, variant_styles
from simserve.report.words import dig, number, share

Document = Mapping[str, Any]
Point = Mapping[str, Any]
MAX_POINTS = 1_800  # drawn and listed; all of them stand in points.parquet
MIN_LINE = 4  # values of an axis, for lines along it
PLAIN = (
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_rps",
    "slo_attainment",
    "lowest_slo_attainment",
    "fairness.speed",
    "fairness.slo_attainment",
    "mean_batch_size",
    "mean_waiting",
    "kv_used",
    "prefix_hit_rate",
    "prefix_hit_bound",
    "num_preemptions",
    "num_turned_away",
    "unanswered_share",
    "computed_tokens",
    "model_macs",
    "tokens_per_pass",
    "acceptance_rate",
)
PATHS = (*PLAIN, *(f"{family}.{statistic}" for family in FAMILIES for statistic in STATISTICS))


@dataclass(frozen=True)
class SweepData:
    """Read-only views of the document, computed once."""

    document: Document

    @cached_property
    def styles(self) -> list[VariantStyle]:
        """One per variant, in the order of the step times (that of the scenario)."""
        names = dict.fromkeys([*self.document["step_times"], *(p["variant"] for p in self.document["points"])])
        return variant_styles(names)

    @property
    def metric(self) -> str:
        """The latency that knees and the Pareto front are of."""
        return str(self.document["metric"])

    @cached_property
    def load(self) -> Measure | None:
        """The axis of the load, if one was swept."""
        key = self.document["load_axis"]
        words = self.document.get("load_words")
        return None if key is None else Measure("load", words) if words else load_measure(key)

    @cached_property
    def line(self) -> Measure | None:
        """Without a load: the only axis, where it has numbers enough to draw lines along it."""
        axes = self.document["axes"]
        if self.load is not None or len(axes) != 1 or len(axes[0]["values"]) < MIN_LINE:
            return None
        is_numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in axes[0]["values"])
        return Measure("load", last_words(axes[0]["key"])) if is_numeric else None

    @cached_property
    def all_groups(self) -> list[str]:
        """The settings besides the load, in words, in the order of the points."""
        return list(dict.fromkeys(self.group_of(point) for point in self.document["points"]))

    @cached_property
    def drawn(self) -> list[tuple[int, Point]]:
        """The points that charts and tables hold, with their numbers: as many whole groups of settings as fit, at least
        the beginning of the first."""
        groups: dict[str, list[tuple[int, Point]]] = {group: [] for group in self.all_groups}
        for index, point in enumerate(self.document["points"]):
            groups[self.group_of(point)].append((index, point))
        kept: list[tuple[int, Point]] = []
        for points in groups.values():
            if kept and len(kept) + len(points) > MAX_POINTS:
                break
            kept += points[:MAX_POINTS]
        return kept

    @cached_property
    def groups(self) -> list[str]:
        """The settings of the points drawn."""
        return list(dict.fromkeys(self.group_of(point) for _, point in self.drawn))

    @cached_property
    def measures(self) -> list[Measure]:
        """What was measured, of what this page draws."""
        return known([point for _, point in self.drawn], PATHS)

    @cached_property
    def dims(self) -> dict[str, Dim]:
        """An axis per measure, and one called ``load``."""
        found: dict[str, Dim] = {m.path: dim(m, f"c{i}", self._values(m.path)) for i, m in enumerate(self.measures)}
        along = self.load or self.line
        if along is None:
            return found
        axis = {axis["key"]: axis for axis in self.document["axes"]}[self._along]
        loads = [self._place(point) for _, point in self.drawn]
        log = axis["scale"] == "log" or (self.load is None and is_skewed(loads))
        return found | {"load": dim(along, "load", loads, log=log)}

    def load_of(self, point: Point) -> float:
        """The offered load, or the number of clients; 0 where none was swept."""
        return float(point["settings"].get(self.document["load_axis"]) or 0.0)

    @property
    def _along(self) -> str | None:
        """The key that charts run along."""
        key = self.document["axes"][0]["key"] if self.line else self.document["load_axis"]
        return None if key is None else str(key)

    def _place(self, point: Point) -> float:
        return float(point["settings"].get(self._along) or 0.0)

    def group_of(self, point: Point) -> str:
        """The settings of a point besides its load, in words."""
        return settings_text(point["settings"], self.document["load_axis"])

    def rows(self) -> list[dict[str, Any]]:
        """One row per point drawn: what charts and tooltips need of it."""
        keys = {style.name: style.key for style in self.styles}
        place = {group: i for i, group in enumerate(self.groups)}
        return [
            {
                "id": index,
                "v": keys[point["variant"]],
                "variant": point["variant"],
                "s": place[self.group_of(point)],
                "settings": self.group_of(point),
                "load": self._place(point),
                "g": not is_steady(point),
                "p": bool(point["pareto"]),
                "r": bool(point["report"]),
                "state": backlog_words(point),
                **self._cells(point["metrics"]),
            }
            for index, point in self.drawn
        ]

    def knees(self) -> list[dict[str, Any]]:
        """One row per knee found, on its curve between the two points beside it."""
        keys = {style.name: style.key for style in self.styles}
        place = {group: i for i, group in enumerate(self.groups)}
        return [
            {
                "v": keys[curve["variant"]],
                "variant": curve["variant"],
                "s": place[self.curve_group(curve)],
                "at": f"{number(at)} {self.load.label if self.load else ''}".strip(),
                "load": at,
                **self._between(curve, at),
            }
            for curve in self.document["curves"]
            if (at := dig(curve["knee"] or {}, "value")) is not None and self.curve_group(curve) in place
        ]

    def curve_group(self, curve: Mapping[str, Any]) -> str:
        """The settings of a curve in words."""
        return settings_text(curve["settings"], self.document["load_axis"])

    def _values(self, path: str) -> list[float]:
        intervals = [interval_of(point["metrics"], path) for _, point in self.drawn]
        found = [dig(interval, key) for interval in intervals for key in ("value", "low", "high")]
        return [value for value in found if value is not None]

    def _cells(self, metrics: Mapping[str, Any]) -> dict[str, float | None]:
        cells: dict[str, float | None] = {}
        for measure in self.measures:
            axis, interval = self.dims[measure.path], interval_of(metrics, measure.path)
            low, value, high = (_drawable(dig(interval, key), axis) for key in ("low", "value", "high"))
            cells[axis["field"]] = value
            if low is not None and high is not None:
                cells |= {axis["low"]: low, axis["high"]: high}
        return cells

    def _between(self, curve: Mapping[str, Any], at: float) -> dict[str, float]:
        points = [self.document["points"][index] for index in curve["points"]]
        loads = [self.load_of(point) for point in points]
        found = {}
        for measure in self.measures:
            axis = self.dims[measure.path]
            values = [_value(point, measure, axis) for point in points]
            value = on_curve(loads, values, at, (self.dims["load"]["scale"], axis["scale"]))
            if value is not None:
                found[axis["field"]] = float(f"{value:.5g}")
        return found


def is_steady(point: Point) -> bool:
    """Whether a point's latencies are those of a service that keeps up and answers."""
    return not (point["grows"] or point["leaves_unanswered"])


def backlog_words(point: Point) -> str:
    """What is known of a point's backlog, and whether it leaves requests without an answer."""
    state = "grows" if point["grows"] else "does not grow" if point["growth_tested"] else "not tested"
    left = dig(interval_of(point["metrics"], "unanswered_share"), "value")
    return f"{state}, {share(left)} unanswered" if point["leaves_unanswered"] else state


def on_curve(
    loads: Sequence[float], values: Sequence[float | None], at: float, scales: tuple[str, str] = ("linear", "linear")
) -> float | None:
    """The height of a drawn curve at ``at``: on the straight line between the two neighbours, as straight as it looks
    on the scales of x and y. None outside of the curve or where a neighbour is unknown."""
    for (x0, y0), (x1, y1) in itertools.pairwise(zip(loads, values, strict=True)):
        if x0 <= at <= x1 and y0 is not None and y1 is not None:
            way = _way(x0, x1, at, scales[0] == "log")
            return y0 * (y1 / y0) ** way if scales[1] == "log" else y0 + (y1 - y0) * way
    return None


def _way(begin: float, end: float, at: float, log: bool) -> float:
    """How far ``at`` lies on the way from ``begin`` to ``end``."""
    if begin == end:
        return 0.0
    return math.log(at / begin) / math.log(end / begin) if log else (at - begin) / (end - begin)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, null where a row has nothing: a third of the bytes."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _value(point: Point, measure: Measure, axis: Dim) -> float | None:
    return _drawable(dig(interval_of(point["metrics"], measure.path), "value"), axis)


def _drawable(value: float | None, axis: Dim) -> float | None:
    """Five digits; a bound below zero, where no measure goes, is drawn at the lower end of its axis."""
    if value is None or not math.isfinite(value):
        return None
    if value < 0 or (axis["scale"] == "log" and value == 0):
        return float(axis["domain"][0])
    return float(f"{value:.5g}")
