"""Curves that a calibration page adds to the tables: time per prompt token, and the batch curve with its knee."""

from __future__ import annotations

import altair as alt
import pandas as pd

from simserve.report.aggregate import log_ticks
from simserve.report.calibration_data import rows_of
from simserve.report.figure import (
    Figure,
    Table,
    TopChart,
    data,
    duration_axis,
    duration_tip,
    finish,
    number_axis,
    number_tip,
)
from simserve.report.surface import SingleStep
from simserve.report.words import count, duration, number, plural, share, times
from simserve.step_time.knee import KneeInterval, knee_interval
from simserve.step_time.profile_schema import BatchCurve, Profile
from simserve.step_time.source import MeasuredPoint

MAX_RAW = 400


def single_steps(samples: pd.DataFrame) -> tuple[SingleStep, ...]:
    """The prefill and decode samples of a profile as marks."""
    mine = samples[samples["phase"].isin(["prefill", "decode"]) & (samples["context_spread"] == 0)]
    return tuple(
        SingleStep(
            MeasuredPoint(s.phase, s.batch_size, s.num_new_tokens, s.num_context_tokens, float(s.seconds)),
            bool(s.dirty),
        )
        for s in rows_of(mine)
    )


def knee_of(profile: Profile, samples: pd.DataFrame) -> KneeInterval:
    """The knee of the profile's batch curve with its bootstrap interval, from the samples behind the curve."""
    curve = profile.batch_curve
    behind = _behind(curve, samples)
    step_s: dict[int, list[float]] = {point.batch_size: [point.seconds] for point in curve.points}
    for batch in step_s:
        group = behind[behind["batch_size"] == batch]
        clean = group[~group["dirty"]]
        if len(group):
            step_s[batch] = (clean if len(clean) > 1 else group)["seconds"].tolist()
    return knee_interval(step_s)


def knee_sentence(curve: BatchCurve, knee: KneeInterval) -> str:
    """Where the curve bends and how sure that is."""
    at = next(point for point in curve.points if point.batch_size == curve.knee)
    agree = len(knee.shares) == 1
    spread = f"at {knee.low:,}" if knee.low == knee.high else f"from {knee.low:,} to {knee.high:,}"
    sure = "all bootstrap draws agree" if agree else f"nine in ten bootstrap draws lie {spread}"
    if not knee.shares:
        sure = "one sample of each batch, so no interval"
    return (
        f"The knee is at batch {curve.knee:,}, the last doubling that gained √2 in throughput: "
        f"{times(at.throughput_ratio)} the tokens per second of batch {curve.points[0].batch_size:,} at "
        f"{times(at.latency_ratio)} the time per token ({sure})."
    )


def batch_figure(profile: Profile, samples: pd.DataFrame, knee: KneeInterval) -> Figure:
    """Decode throughput over batch size, with the samples, the knee and its interval."""
    curve = profile.batch_curve
    chart = _batch_chart(curve, _behind(curve, samples), knee)
    rows = tuple(
        (
            f"{point.batch_size:,}" + (" (knee)" if point.batch_size == curve.knee else ""),
            duration(point.seconds),
            number(point.tokens_per_s),
            times(point.throughput_ratio),
            times(point.latency_ratio),
            share(knee.shares.get(point.batch_size, 0.0) if knee.shares else None),
        )
        for point in curve.points
    )
    head = ("batch size", "decode step", "tokens/s", "throughput", "latency", "draws with this knee")
    caption = f"At {count(curve.num_context_tokens)} tokens of context in every row. {knee_sentence(curve, knee)}"
    return Figure("batch-throughput", "Throughput over batch size", caption, finish(chart, 280), Table(head, rows))


def per_token_figure(profile: Profile) -> Figure:
    """Prefill time per token over the number of tokens, at the smallest context of each row."""
    rows = [
        {"x": row.row, "y": float(f"{row.seconds[0] / row.row:.5g}"), "step": float(f"{row.seconds[0]:.5g}")}
        for row in profile.prefill.rows
    ]
    values = [float(row["y"]) for row in rows]
    low, high = min(values) * 0.8, max(values) * 1.25
    axis = duration_axis("time per token, logarithmic", log_ticks(low, high, 6), grid=True)
    y = alt.Y("y:Q", axis=axis, scale=alt.Scale(type="log", domain=[low, high], nice=False))
    tooltip = [
        alt.Tooltip("x:Q", title="tokens", format=","),
        duration_tip("y", "a token"),
        duration_tip("step", "step"),
    ]
    x = _doubling_x("new tokens, logarithmic", [int(row["x"]) for row in rows])
    chart = alt.Chart(data(rows)).mark_line(color="var(--c1)", point={"color": "var(--c1)", "size": 40})
    first, last = rows[0], rows[-1]
    caption = (
        f"A prefill of {plural(int(first['x']), 'token')} costs {duration(first['y'])} a token, one of "
        f"{count(last['x'])} tokens {duration(last['y'])}: {times(float(first['y']) / float(last['y']))} less."
    )
    drawn: TopChart = chart.encode(x, y, tooltip=tooltip)
    return Figure("prefill-per-token", "Prefill, time per token", caption, finish(drawn))


def _behind(curve: BatchCurve, samples: pd.DataFrame) -> pd.DataFrame:
    """The decode samples at the curve's context."""
    mine = samples[(samples["phase"] == "decode") & (samples["context_spread"] == 0)]
    mine = mine[mine["num_context_tokens"] == curve.num_context_tokens]
    return mine[mine["batch_size"].isin([point.batch_size for point in curve.points])]


def _batch_chart(curve: BatchCurve, behind: pd.DataFrame, knee: KneeInterval) -> TopChart:
    batches = [point.batch_size for point in curve.points]
    x = _doubling_x("rows in the batch, logarithmic", batches)
    y = alt.Y("y:Q", axis=number_axis("decode tokens/s", ticks=5, grid=True), scale=alt.Scale(zero=True))
    line = [
        {"x": p.batch_size, "y": float(f"{p.tokens_per_s:.5g}"), "step": float(f"{p.seconds:.5g}")}
        for p in curve.points
    ]
    singles = [
        {"x": int(s.batch_size), "y": float(f"{s.batch_size / s.seconds:.5g}"), "state": bool(s.dirty)}
        for s in rows_of(behind)[:MAX_RAW]
    ]
    tooltip = [alt.Tooltip("x:Q", title="batch", format=","), number_tip("y", "tokens/s"), duration_tip("step", "step")]
    layers: list[TopChart] = []
    if knee.high > knee.low:
        band = alt.Chart(data([{"x": knee.low, "end": knee.high}])).mark_rect(color="var(--accent)", opacity=0.12)
        layers.append(band.encode(x, alt.X2("end:Q")))
    mark = alt.Chart(data([{"x": curve.knee}]))
    layers.append(mark.mark_rule(color="var(--accent)", strokeDash=[4, 3], strokeWidth=1.5).encode(x))
    name = mark.mark_text(
        align="right", dx=-6, dy=10, baseline="top", text=f"knee {curve.knee:,}", color="var(--accent)"
    )
    layers.append(name.encode(x, y=alt.value(0)))
    if singles:
        rings = alt.Chart(data(singles)).mark_point(size=22, filled=False, strokeWidth=1, opacity=0.55)
        colors = alt.Scale(domain=[False, True], range=["var(--ink-soft)", "var(--accent)"])
        layers.append(rings.encode(x, y, alt.Color("state:N", scale=colors, legend=None)))
    drawn = alt.Chart(data(line)).mark_line(color="var(--c0)", point={"color": "var(--c0)", "size": 45})
    layers.append(drawn.encode(x, y, tooltip=tooltip))
    return alt.layer(*layers)


def _doubling_x(title: str, values: list[int]) -> alt.X:
    low, high = min(values), max(values)
    ticks = [float(2**k) for k in range(high.bit_length()) if low <= 2**k <= high]
    axis = number_axis(title, ticks[:: -(-len(ticks) // 8) or 1])
    return alt.X("x:Q", axis=axis, scale=alt.Scale(type="log", base=2, domain=[low, max(high, low + 1)], nice=False))
