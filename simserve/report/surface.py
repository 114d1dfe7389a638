"""The step times that a run used: the model's curves, with the measured points that they were fitted to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from simserve.report.aggregate import log_ticks
from simserve.report.figure import Figure, Key, Table, TopChart, data, duration_axis, duration_tip, finish, number_axis
from simserve.report.lines import reference_rule
from simserve.report.style import DASHES
from simserve.report.words import count, duration, times
from simserve.request import Batch, Chunk
from simserve.step_time.source import MeasuredPoint, Phase, StepTimeSource
from simserve.step_time.stretch import StepTime

NUM_CURVE_POINTS = 48
MAX_CURVES = 6
MAX_SINGLES = 400  # of each kind, per chart
MAX_POINTS = 240  # drawn per chart; there is one per measured shape
_COLORS = [f"var(--s{i})" for i in range(MAX_CURVES)]  # from light to dark: their order is read without hue
_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]

_TITLES = {  # title, and what tells its curves apart
    "context": ("Decode step over context", "batch size"),
    "batch": ("Decode step over batch size", "context of each row"),
    "prefill": ("Prefill step over tokens", "tokens cached before"),
}

Row = dict[str, Any]
Curve = Callable[[int, int], float]  # (series value, x) -> seconds


class SingleStep(NamedTuple):
    """One timed step as a mark of its own, beside the median of its point; ``disturbed`` by other processes."""

    point: MeasuredPoint
    disturbed: bool


class _Drawn(NamedTuple):
    """A chart, the numbers behind it, and what its curves stand for."""

    chart: TopChart
    table: Table
    values: Sequence[int]


@dataclass(frozen=True)
class Surface:
    """A step-time model, and the ranges to draw it over: what its runs needed and what was measured. ``singles`` are
    the timed steps behind the medians, where they are to be seen too."""

    key: str
    step_time: StepTime
    source: StepTimeSource
    max_context_tokens: int
    max_num_seqs: int
    max_prefill_tokens: int
    singles: tuple[SingleStep, ...] = ()

    def decode_s(self, batch_size: int, num_context_tokens: int) -> float:
        """Duration of one decode step of ``batch_size`` rows with that context each."""
        batch = Batch(num_decodes=batch_size, decode_context_tokens=batch_size * num_context_tokens)
        return self.step_time.ramp(batch, 0).first_s

    def of(self, phase: Phase) -> list[SingleStep]:
        """The single steps of one phase (prefills of one row)."""
        steps = [step for step in self.singles if step.point.phase == phase]
        return [step for step in steps if phase == "decode" or step.point.batch_size == 1]

    def prefill_s(self, num_context_tokens: int, num_new_tokens: int) -> float:
        """Duration of one prefill of ``num_new_tokens`` of one row on top of a cached context."""
        return self.step_time.ramp(Batch(chunks=(Chunk(num_new_tokens, num_context_tokens),)), 0).first_s


def surface_figures(surface: Surface) -> list[Figure]:
    """Decode time over context and over batch size, and prefill time over tokens."""
    return [_over_context(surface), _over_batch(surface), _prefill(surface)]


def _over_context(surface: Surface) -> Figure:
    points = [point for point in surface.source.points if point.phase == "decode"]
    batches = _picked({p.batch_size for p in points} or _powers_of_two(surface.max_num_seqs))
    longest = max([surface.max_context_tokens, *(p.num_context_tokens for p in points)])
    grid = np.unique(np.linspace(1, longest, NUM_CURVE_POINTS).astype(int)).tolist()
    curves = _curve_rows(surface.decode_s, batches, grid)
    dots = [_dot(p.batch_size, p.num_context_tokens, p) for p in points if p.batch_size in batches]
    chart = _chart(curves, dots, "batch size", alt.X("x:Q", axis=number_axis("context per row (tokens)")))
    chart = _with_singles(
        chart, [_single(s, s.point.batch_size, s.point.num_context_tokens) for s in surface.of("decode")], curves
    )
    if dots and max(dot["x"] for dot in dots) < longest:
        chart = alt.layer(chart, reference_rule(max(dot["x"] for dot in dots), "measured up to here", "x"))
    nearest = min(batches, key=lambda size: abs(size - surface.max_num_seqs))
    short, long = surface.decode_s(nearest, 1), surface.decode_s(nearest, longest)
    caption = (
        f"A decode step of {count(nearest)} rows takes {duration(short)} with next to no context and {duration(long)} "
        f"({times(long / short)}) with {count(longest)} tokens of it in every row."
    )
    table = _table("context", "batch", _picked(grid), batches, surface.decode_s)
    return _figure(surface, "context", caption, _Drawn(chart, table, batches))


def _over_batch(surface: Surface) -> Figure:
    points = [point for point in surface.source.points if point.phase == "decode"]
    longest = surface.max_context_tokens
    contexts = _picked({p.num_context_tokens for p in points} or {-(-longest // 16), -(-longest // 4), longest}, 4)
    largest = max([surface.max_num_seqs, *(p.batch_size for p in points)])
    grid = np.unique(np.geomspace(1, largest, NUM_CURVE_POINTS).astype(int)).tolist()

    def decode_s(num_context_tokens: int, batch_size: int) -> float:
        return surface.decode_s(batch_size, num_context_tokens)

    curves = _curve_rows(decode_s, contexts, grid)
    dots = [_dot(p.num_context_tokens, p.batch_size, p) for p in points if p.num_context_tokens in contexts]
    chart = _chart(curves, dots, "context", _log_x("rows in the batch", 1, largest))
    chart = _with_singles(
        chart, [_single(s, s.point.num_context_tokens, s.point.batch_size) for s in surface.of("decode")], curves
    )
    middle = contexts[(len(contexts) - 1) // 2]
    one, all_rows = surface.decode_s(1, middle), surface.decode_s(largest, middle)
    caption = (
        f"From 1 row to {count(largest)}, each over {count(middle)} tokens, a decode step grows from {duration(one)} "
        f"to {duration(all_rows)}: {times(largest * one / all_rows)} the tokens per second at "
        f"{times(all_rows / one)} the time per token."
    )
    table = _table("rows", "context", _picked(grid), contexts, decode_s)
    return _figure(surface, "batch", caption, _Drawn(chart, table, contexts))


def _prefill(surface: Surface) -> Figure:
    points = [point for point in surface.source.points if point.phase == "prefill" and point.batch_size == 1]
    contexts = _picked({p.num_context_tokens for p in points} or {0}, 4)
    longest = max([surface.max_prefill_tokens, *(p.num_new_tokens for p in points)])
    grid = np.unique(np.geomspace(1, longest, NUM_CURVE_POINTS).astype(int)).tolist()
    curves = _curve_rows(surface.prefill_s, contexts, grid)
    dots = [_dot(p.num_context_tokens, p.num_new_tokens, p) for p in points if p.num_context_tokens in contexts]
    chart = _chart(curves, dots, "cached before", _log_x("new tokens", 1, longest))
    chart = _with_singles(
        chart, [_single(s, s.point.num_context_tokens, s.point.num_new_tokens) for s in surface.of("prefill")], curves
    )
    whole = surface.prefill_s(contexts[0], longest)
    caption = (
        f"A prefill of one token takes {duration(surface.prefill_s(contexts[0], 1))}, one of {count(longest)} tokens "
        f"{duration(whole)}, {duration(whole / longest)} a token."
    )
    table = _table("new tokens", "cached", _picked(grid), contexts, surface.prefill_s)
    return _figure(surface, "prefill", caption, _Drawn(chart, table, contexts))


def _chart(curves: list[Row], dots: list[Row], series: str, x: alt.X) -> TopChart:
    names = list(dict.fromkeys(row["series"] for row in curves))
    n = len(names)
    color = alt.Color("series:N", scale=alt.Scale(domain=names, range=_COLORS[-n:]), legend=None)
    y = _seconds_axis([row["y"] for row in [*curves, *dots]])
    tooltip = [
        alt.Tooltip("series:N", title=series),
        alt.Tooltip("x:Q", title="at", format=","),
        duration_tip("y", "step"),
    ]
    dash = alt.Scale(domain=names, range=[list(dash) for dash in DASHES[:n]])
    lines = alt.Chart(data(curves)).mark_line()
    drawn: alt.Chart = lines.encode(x, y, color, alt.StrokeDash("series:N", scale=dash, legend=None), tooltip=tooltip)
    if not dots:
        return drawn
    shape = alt.Shape("series:N", scale=alt.Scale(domain=names, range=_SHAPES[:n]), legend=None)
    points = alt.Chart(data(_thinned(dots))).mark_point(size=45, filled=True, opacity=0.9)
    return alt.layer(drawn, points.encode(x, y, color, shape, tooltip=tooltip))


def _with_singles(chart: TopChart, singles: list[Row], curves: list[Row]) -> TopChart:
    """The chart over marks of the single steps of its series: rings, and crosses where others disturbed them."""
    names = list(dict.fromkeys(row["series"] for row in curves))
    drawn = [row for row in singles if row["series"] in names]
    if not drawn:
        return chart
    rows = _thinned([row for row in drawn if row["state"] == "clean"], MAX_SINGLES)
    rows += _thinned([row for row in drawn if row["state"] != "clean"], MAX_SINGLES)
    marks = alt.Chart(data(rows)).mark_point(size=22, filled=False, strokeWidth=1, opacity=0.55)
    states = ["clean", "disturbed"]
    shape = alt.Shape("state:N", scale=alt.Scale(domain=states, range=["circle", "cross"]), legend=None)
    color = alt.Color(
        "state:N", scale=alt.Scale(domain=states, range=["var(--ink-soft)", "var(--accent)"]), legend=None
    )
    tooltip = [
        alt.Tooltip("state:N", title="one step"),
        alt.Tooltip("x:Q", title="at", format=","),
        duration_tip("y", "step"),
    ]
    layer = marks.encode(alt.X("x:Q"), alt.Y("y:Q"), color, shape, tooltip=tooltip)
    both: TopChart = alt.layer(chart, layer).resolve_scale(color="independent", shape="independent")
    return both


def _figure(surface: Surface, kind: str, caption: str, drawn: _Drawn) -> Figure:
    title, series = _TITLES[kind]
    spec = finish(drawn.chart)
    return Figure(f"surface-{surface.key}-{kind}", title, caption, spec, drawn.table, series, _keys(drawn.values))


def _keys(values: Sequence[int]) -> tuple[Key, ...]:
    drawn = zip(values, _COLORS[-len(values) :], DASHES, strict=False)
    return tuple(Key(f"{value:,}", color, " ".join(map(str, dash))) for value, color, dash in drawn)


def _seconds_axis(values: Sequence[float]) -> alt.Y:
    low, high = min(values), max(values)
    if low <= 0 or high < 5 * low:
        return alt.Y("y:Q", axis=duration_axis("step time", ticks=5, grid=True), scale=alt.Scale(zero=True))
    low, high = low * 0.85, high * 1.15
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y("y:Q", axis=duration_axis("step time, logarithmic", log_ticks(low, high, 7), grid=True), scale=scale)


def _log_x(title: str, low: int, high: int) -> alt.X:
    ticks = [2.0**k for k in range(high.bit_length()) if low <= 2**k <= high]
    axis = number_axis(f"{title}, logarithmic", ticks[:: -(-len(ticks) // 8)])
    return alt.X("x:Q", axis=axis, scale=alt.Scale(type="log", base=2, domain=[low, max(high, low + 1)], nice=False))


def _curve_rows(curve: Curve, series: Sequence[int], grid: Sequence[int]) -> list[Row]:
    return [{"series": f"{value:,}", "x": x, "y": _round(curve(value, x))} for value in series for x in grid]


def _dot(series: int, x: int, point: MeasuredPoint) -> Row:
    return {"series": f"{series:,}", "x": x, "y": _round(point.seconds)}


def _single(step: SingleStep, series: int, x: int) -> Row:
    state = "disturbed" if step.disturbed else "clean"
    return _dot(series, x, step.point) | {"state": state}


def _thinned(rows: list[Row], limit: int = MAX_POINTS) -> list[Row]:
    return rows[:: max(1, -(-len(rows) // limit))]


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def _picked(values: Iterable[int], limit: int = MAX_CURVES) -> list[int]:
    """At most ``limit`` of the values, evenly through their order, the smallest and the largest among them."""
    ordered = sorted(set(values))
    places = np.linspace(0, len(ordered) - 1, min(limit, len(ordered))).round().astype(int)
    return [ordered[i] for i in places]


def _powers_of_two(high: int) -> list[int]:
    return [*(2**k for k in range(high.bit_length()) if 2**k < high), high]


def _table(x: str, series: str, grid: Sequence[int], values: Sequence[int], curve: Curve) -> Table:
    head = (x, *(f"{series} {value:,}" for value in values))
    return Table(head, tuple((f"{at:,}", *(duration(curve(value, at)) for value in values)) for at in grid))
