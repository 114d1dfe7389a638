"""A sweep's answer in words: which variant carries most, and where each curve breaks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simserve.report.figure import Table
from simserve.report.study_measures import Measure, interval_of, interval_text, measure_of
from simserve.report.study_words import ALL_EQUAL
from simserve.report.sweep_data import Point, SweepData, is_steady
from simserve.report.words import NOTHING, dig, grouped, joined, number, ratio, times

THROUGHPUT = "output_tokens_per_s"
NOT_TESTED = "not tested"
MAX_ROWS = 60
MAX_NAMED = 4
_SAME = 0.01  # relative difference of throughput that a reader would call none


def best_points(data: SweepData) -> dict[str, Point]:
    """By variant, the point of the most output tokens/s among those that keep up and answer (among all of them
    where none does), of equal ones that of the shortest answers; the variant that carries most comes first."""
    found: dict[str, Point] = {}
    for style in data.styles:
        mine = [point for point in data.document["points"] if point["variant"] == style.name]
        measured = [point for point in mine if _carried(point) is not None]
        steady = [point for point in measured if is_steady(point)] or measured
        if steady:
            found[style.name] = _best(steady)
    left, ordered = dict(found), {}
    while left:
        best = _best(list(left.values()))["variant"]
        ordered[best] = left.pop(best)
    return ordered


def sweep_headline(data: SweepData) -> str:
    """One or two sentences: the best variant and its ratio to the next, then where curves break."""
    best = best_points(data)
    if not best:
        return "No point of this sweep was measured."
    (name, point), *others = best.items()
    if not any(is_steady(p) for p in data.document["points"]):
        all_grow = all(p["grows"] for p in data.document["points"])
        why = "has a growing backlog" if all_grow else "has a growing backlog or leaves requests unanswered"
        first = f"Every point of this sweep {why}; {name} still gives the most"
    else:
        first = f"{name} carries the most"
    first += f": {number(_carried(point))} output tokens/s{_where(data, point)}{_against_next(others, point)}."
    broken = _breaks(data)
    return f"{first} {broken}" if broken else first


def _against_next(others: Sequence[tuple[str, Point]], point: Point) -> str:
    """How much more that is than what the next variant carries."""
    if not others:
        return ""
    second, other = others[0]
    gain = ratio(_carried(point), _carried(other)) or 1.0
    if gain > 1 + _SAME:
        return f", {times(gain)} as much as {second}"
    slower = ratio(_latency(other), _latency(point)) or 1.0
    longer = f" with {times(slower)} the latency" if slower > 1 + _SAME else " at the same latency"
    return f"; {second} gives as much{longer}"


def curve_table(data: SweepData) -> Table:
    """A row per curve: its knee, where its backlog grows, and what it carries before."""
    throughput, latency, first = measure_of(THROUGHPUT), measure_of("e2e_s.mean"), measure_of("ttft_s.p99")
    load = data.load
    many = len(data.all_groups) > 1
    settings = ("settings",) if many else ()
    head = ("variant", *settings, f"knee, {load.label if load else 'load'}", "backlog grows from")
    rows = []
    for curve in data.document["curves"][:MAX_ROWS]:
        points = [data.document["points"][index] for index in curve["points"]]
        steady = [p for p in points if is_steady(p) and _carried(p) is not None]
        top = max(steady, key=lambda p: _carried(p) or 0.0, default=None)
        metrics = top["metrics"] if top else {}
        knee = knee_text(curve, load) if load else NOTHING
        rows.append(
            (
                curve["variant"],
                *((data.curve_group(curve),) if many else ()),
                knee,
                _grows_from(data, curve, "nowhere in this range"),
                *(interval_text(interval_of(metrics, m.path), m) for m in (throughput, latency, first)),
            )
        )
    return Table((*head, f"most {throughput.label} before", "E2E mean there", "TTFT p99 there"), tuple(rows))


def best_table(data: SweepData) -> Table:
    """Without a load: the best settings of each variant."""
    measures = [measure_of(path) for path in (THROUGHPUT, "ttft_s.p99", "e2e_s.mean")]
    rows = [
        (name, data.group_of(point), *(interval_text(interval_of(point["metrics"], m.path), m) for m in measures))
        for name, point in best_points(data).items()
    ]
    return Table(("variant", "best settings", *(m.label for m in measures)), tuple(rows))


def _breaks(data: SweepData) -> str:
    """Where the curves of the best settings bend, and from where their backlog grows."""
    if data.load is None:
        return ""
    texts = {}
    for name, point in list(best_points(data).items())[:MAX_NAMED]:
        group = data.group_of(point)
        curve = next((c for c in _curves(data, name) if data.curve_group(c) == group), None)
        if curve is not None:
            texts[name] = _break(data, curve)
    left = len(data.styles) - MAX_NAMED
    more = f"; {left} other variants stand in the table" if left > 0 else ""
    return f"Over {data.load.label}, {grouped(texts)}{more}." if texts else ""


def _break(data: SweepData, curve: Mapping[str, Any]) -> str:
    knee = curve["knee"] or {}
    value, low, high = (dig(knee, key) for key in ("value", "low", "high"))
    bounds = f" ({number(low)} to {number(high)})" if low is not None and high is not None else ""
    parts = [f"latency turns up at {number(value)}{bounds}"] if value is not None else []
    found = _grows_from(data, curve, "nowhere")
    if found == NOT_TESTED:
        parts.append("whether the backlog grows is not tested")
    else:
        parts.append(f"the backlog grows {'' if found == 'nowhere' else 'from '}{found}")
    return joined(parts)


def knee_text(curve: Mapping[str, Any], load: Measure) -> str:
    """A knee with its interval and the loads that it was looked for in, or why there is none."""
    if not curve["knee"]:
        return "none in this range" if curve["saturation_reached"] else "none: saturation is not reached"
    low, high = curve["knee"]["range"]
    return f"{interval_text(curve['knee'], load)}, of {number(low)} to {number(high)}"


def _grows_from(data: SweepData, curve: Mapping[str, Any], nowhere: str) -> str:
    """The load from which a curve's backlog grows, ``nowhere``, or that it was not tested at some load."""
    from_ = dig(curve, "saturated_from")
    if from_ is not None:
        return number(from_)
    return nowhere if all(data.document["points"][i]["growth_tested"] for i in curve["points"]) else NOT_TESTED


def _curves(data: SweepData, variant: str) -> Iterable[Mapping[str, Any]]:
    return (curve for curve in data.document["curves"] if curve["variant"] == variant)


def _where(data: SweepData, point: Point) -> str:
    parts = []
    if data.load is not None:
        parts.append(f"{number(data.load_of(point))} {data.load.label}")
    group = data.group_of(point)
    if group != ALL_EQUAL:
        parts.append(group)
    return f" at {' and '.join(parts)}" if parts else ""


def _best(points: Sequence[Point]) -> Point:
    """The most output tokens/s; of those within a percent of it, the shortest answers."""
    most = max(_carried(point) or 0.0 for point in points)
    equal = [point for point in points if (_carried(point) or 0.0) >= most * (1 - _SAME)]
    return min(equal, key=lambda point: _latency(point) or math.inf)


def _latency(point: Point) -> float | None:
    return dig(interval_of(point["metrics"], "e2e_s.mean"), "value")


def _carried(point: Point) -> float | None:
    return dig(interval_of(point["metrics"], THROUGHPUT), "value")
