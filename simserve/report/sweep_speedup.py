"""A sweep's section on speculation: the speed of an answer over the plain engine's, and where it falls below 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simserve.report.aggregate import is_skewed
from simserve.report.content import Section
from simserve.report.figure import Figure, Key, Table
from simserve.report.study_dims import dim
from simserve.report.study_measures import Measure, interval_text
from simserve.report.study_words import ALL_EQUAL, load_measure, settings_text
from simserve.report.style import VariantStyle
from simserve.report.sweep_data import SweepData
from simserve.report.sweep_speedup_chart import speedup_chart
from simserve.report.words import dig, grouped, number, times

Curve = Mapping[str, Any]
MAX_PANELS = 12
SPEEDUP = Measure("speedup", "speed of an answer, times the plain engine's")
_FORMULA = "thin: by the formula (1 − α^(γ+1)) / (1 − α) / (γc + 1), where a pass takes as long whatever it checks"
_INTRO = (
    "Tokens after the first per second of an answer (1 / TPOT), over those of {plain} on the same requests. Above the "
    "line speculation pays, below it slows generation down; ◇ marks where, with its 95 % interval shaded."
)
_LABELS = {
    "acceptance": "acceptance of a drafted token",
    "draft_tokens": "tokens drafted per pass",
    "cost": "cost of a draft step",
}


def speedup_section(data: SweepData) -> Section | None:
    """The section, None for a sweep without speculation to compare."""
    found = data.document.get("speedups")
    if not found or not found["curves"]:
        return None
    axis = _axis(found["axis"])
    groups: dict[str, list[Curve]] = {}
    for curve in found["curves"]:
        groups.setdefault(settings_text(curve["settings"], found["axis"]), []).append(curve)
    panels = list(groups.items())[:MAX_PANELS]
    figures = [
        _figure(data, i, name if len(groups) > 1 else "Speed-up over the plain engine", curves, axis, len(groups) == 1)
        for i, (name, curves) in enumerate(panels)
    ]
    notes = (f"Drawn for the first {MAX_PANELS} of {len(groups)} settings.",) if len(groups) > MAX_PANELS else ()
    intro, table = _INTRO.format(plain=found["baseline"]), _table(found, axis)
    return Section("speculation", "Where speculation pays", intro, tuple(figures), table, "variants", notes)


def _axis(key: str) -> Measure:
    last = key.rpartition(".")[2]
    return Measure("x", _LABELS[last]) if last in _LABELS else load_measure(key)


def _figure(data: SweepData, index: int, title: str, curves: Sequence[Curve], axis: Measure, wide: bool) -> Figure:
    xs = [float(point["x"]) for curve in curves for point in curve["points"]]
    x = dim(axis, "x", xs, log=is_skewed(xs))
    ends = [
        dig(point, key) for curve in curves for point in curve["points"] for key in ("value", "low", "high", "formula")
    ]
    y = dim(SPEEDUP, "y", [*(end for end in ends if end is not None), 1.0], log=False)
    has_formula = any(dig(point, "formula") is not None for curve in curves for point in curve["points"])
    rows = [row for curve in curves for row in _rows(data.styles, curve)]
    spec = speedup_chart(x, y, data.styles, rows, [row for curve in curves for row in _marks(data.styles, curve)])
    keys = (Key(_FORMULA, "var(--ink-soft)", "1 0"),) if has_formula else ()
    texts = {curve["variant"]: _verdict(curve, axis) for curve in curves}
    points = [
        (number(point["x"]), curve["variant"], interval_text(point, SPEEDUP), number(dig(point, "formula")))
        for curve in curves
        for point in curve["points"]
    ]
    table = Table((axis.label, "variant", SPEEDUP.label, "by the formula"), tuple(points))
    return Figure(f"speedup-{index}", title, f"{grouped(texts)}.", spec, table, keys=keys, wide=wide)


def _table(found: Mapping[str, Any], axis: Measure) -> Table:
    """A row per curve: where it breaks even, and the least and the most that it gains."""
    many = any(curve["settings"] for curve in found["curves"])
    head = ("variant", *(("settings",) if many else ()), f"breaks even at, {axis.label}", "pays", "least", "most")
    rows = []
    for curve in found["curves"]:
        values = [point["value"] for point in curve["points"]]
        at = curve["break_even"]
        settings = settings_text(curve["settings"]) if curve["settings"] else ALL_EQUAL
        rows.append(
            (
                curve["variant"],
                *((settings,) if many else ()),
                interval_text(at, axis),
                f"{at['pays']} it" if at else "everywhere here" if min(values) > 1 else "nowhere here",
                times(min(values)),
                times(max(values)),
            )
        )
    return Table(head, tuple(rows))


def _verdict(curve: Curve, axis: Measure) -> str:
    values = [point["value"] for point in curve["points"]]
    span = f"{times(min(values))} to {times(max(values))} the speed"
    at = curve["break_even"]
    if at is None:
        return f"{span}, {'faster' if min(values) > 1 else 'slower'} everywhere here"
    return f"{span}, paying {at['pays']} {interval_text(at, axis)} ({axis.label})"


def _rows(styles: Sequence[VariantStyle], curve: Curve) -> Iterator[dict[str, Any]]:
    keys = {style.name: style.key for style in styles}
    for point in curve["points"]:
        ends = {"y": "value", "yl": "low", "yh": "high", "f": "formula"}
        cells = {field: dig(point, key) for field, key in ends.items()}
        known = {field: float(f"{value:.5g}") for field, value in cells.items() if value is not None}
        yield {"v": keys[curve["variant"]], "variant": curve["variant"], "x": point["x"], **known}


def _marks(styles: Sequence[VariantStyle], curve: Curve) -> Iterator[dict[str, Any]]:
    """The break-even on the line at 1."""
    at = curve["break_even"]
    if at is not None:
        keys = {style.name: style.key for style in styles}
        ends = {"x": at["value"], "xl": dig(at, "low"), "xh": dig(at, "high")}
        known = {key: value for key, value in ends.items() if value is not None}
        text = interval_text(at, Measure("x", ""))
        yield {"v": keys[curve["variant"]], "variant": curve["variant"], "y": 1.0, "at": text, **known}
