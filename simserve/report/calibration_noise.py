"""How steady the machine was: every sample against its point's median, in the order of the run."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from simserve.report.calibration_data import rows_of, step_name
from simserve.report.calibration_error import log_seconds, phase_color, phase_keys, phase_shape, signed_share
from simserve.report.figure import (
    Figure,
    Key,
    data,
    duration_axis,
    duration_tip,
    finish,
    number_axis,
    share_axis,
    share_tip,
)
from simserve.report.words import number, plural, share

MAX_MARKS = 900
NUM_WINDOWS = 40
_STATES = {"one sample": "var(--c0)", "measured again": "var(--c2)", "disturbed": "var(--accent)"}


def noise_figures(samples: pd.DataFrame, points: pd.DataFrame) -> list[Figure]:
    """Deviation over the run's order with its drift, spread over the length of a step, and what other processes did;
    none for measurements of one sample per point."""
    figures = []
    if len(samples) > len(points):
        figures.append(_deviation(samples))
    if points["spread"].notna().any():
        figures.append(_spread(points))
    if samples["other_cpus"].notna().any():
        figures.append(_others(samples))
    return figures


def typical_spread(points: pd.DataFrame) -> float | None:
    """The median over points of the coefficient of variation of their clean samples; None where none has two."""
    spreads = points["spread"].dropna()
    return float(spreads.median()) if len(spreads) else None


def drift(samples: pd.DataFrame) -> float:
    """How far the median deviation of the last quarter of the run lies from that of the first (a share)."""
    clean = _judged(samples)["deviation"].to_numpy()
    quarter = max(1, len(clean) // 4)
    return float(np.median(clean[-quarter:]) - np.median(clean[:quarter]))


def _deviation(samples: pd.DataFrame) -> Figure:
    edge = max(0.05, 1.2 * float(samples["deviation"].abs().quantile(0.98)))
    beyond = int((samples["deviation"].abs() > edge).sum())
    x = alt.X("order:Q", axis=number_axis("sample number, in the order of the run"), scale=alt.Scale(nice=False))
    axis = alt.Axis(title="off its point's median", format="+.0%", tickCount=6, grid=True)
    y = alt.Y("deviation:Q", axis=axis, scale=alt.Scale(domain=[-edge, edge], nice=False, clamp=True))
    marks = alt.Chart(data(_marks(samples))).mark_point(size=18, filled=True, opacity=0.5)
    tooltip = [
        alt.Tooltip("order:Q", title="sample"),
        alt.Tooltip("step:N", title="step"),
        duration_tip("seconds", "took"),
        alt.Tooltip("deviation:Q", title="off the median", format="+.1%"),
    ]
    line = alt.Chart(data(_windows(samples))).mark_line(strokeWidth=2.5, color="var(--ink)")
    chart = alt.layer(marks.encode(x, y, _state_color(), tooltip=tooltip), line.encode(x, y))
    windows = [window["deviation"] for window in _windows(samples)] or [0.0]
    off = _judged(samples)["deviation"].abs()
    clipped = f" {plural(beyond, 'sample')} further out {'is' if beyond == 1 else 'are'} drawn at the edge." * bool(
        beyond
    )
    caption = (
        f"Half of the clean samples lie within {share(float(off.median()))} of the median of their point, nine in ten "
        f"within {share(float(off.quantile(0.9)))}. The running median lay between "
        f"{signed_share(min(windows))} and {signed_share(max(windows))}; from the first to the last quarter of the run "
        f"it moved by {signed_share(drift(samples))}.{clipped}"
    )
    keys = (*_state_keys(samples), Key("running median", "var(--ink)", ""))
    return Figure("noise-order", "Every sample, in the order of the run", caption, finish(chart), keys=keys, wide=True)


def _spread(points: pd.DataFrame) -> Figure:
    known = points.dropna(subset=["spread"])
    rows = [
        {"seconds": _short(p.median_s), "spread": round(float(p.spread), 5), "phase": p.phase, "step": step_name(p)}
        for p in rows_of(known)
    ]
    scale, ticks = log_seconds(known["median_s"].tolist())
    x = alt.X("seconds:Q", axis=duration_axis("step time, logarithmic", ticks), scale=scale)
    y = alt.Y("spread:Q", axis=share_axis("coefficient of variation", grid=True), scale=alt.Scale(zero=True))
    tooltip = [alt.Tooltip("step:N", title="step"), duration_tip("seconds", "median"), share_tip("spread", "spread")]
    marks = alt.Chart(data(rows[:MAX_MARKS])).mark_point(size=40, filled=True, opacity=0.8)
    chart = marks.encode(x, y, phase_color(), phase_shape(), tooltip=tooltip)
    worst = max(rows_of(known), key=lambda point: float(point.spread))
    caption = (
        f"Spread of the clean samples of each point (standard deviation over mean): {share(typical_spread(points))} at "
        f"the middle point, {share(float(worst.spread))} at the worst, {step_name(worst)}."
    )
    return Figure("noise-spread", "Spread of each point", caption, finish(chart), keys=phase_keys(set(known["phase"])))


def _others(samples: pd.DataFrame) -> Figure:
    known = samples.dropna(subset=["other_cpus"])
    x = alt.X("order:Q", axis=number_axis("sample number, in the order of the run"), scale=alt.Scale(nice=False))
    y = alt.Y(
        "other_cpus:Q", axis=number_axis("CPUs kept busy by others", ticks=5, grid=True), scale=alt.Scale(zero=True)
    )
    marks = alt.Chart(data(_marks(known))).mark_point(size=18, filled=True, opacity=0.6)
    tooltip = [alt.Tooltip("order:Q", title="sample"), alt.Tooltip("other_cpus:Q", title="CPUs"), alt.Tooltip("step:N")]
    chart = marks.encode(x, y, _state_color(), tooltip=tooltip)
    dirty = int(samples["dirty"].sum())
    caption = (
        f"CPUs that other processes used while each step was timed: {number(float(known['other_cpus'].median()))} at "
        f"the median, {number(float(known['other_cpus'].max()))} at most. Of {len(samples):,} samples, {dirty:,} "
        "counted as disturbed and enter no median of a point that has a clean sample."
    )
    keys = _state_keys(known)
    return Figure("noise-others", "Other processes meanwhile", caption, finish(chart), keys=keys)


def _marks(samples: pd.DataFrame) -> list[dict[str, object]]:
    """At most ``MAX_MARKS`` samples, evenly through the run."""
    thinned = samples.iloc[:: max(1, -(-len(samples) // MAX_MARKS))]
    return [
        {
            "order": int(s.order),
            "deviation": round(float(s.deviation), 5),
            "seconds": _short(s.seconds),
            "step": step_name(s),
            "state": "disturbed" if s.dirty else "measured again" if s.session else "one sample",
        }
        | ({} if np.isnan(s.other_cpus) else {"other_cpus": round(float(s.other_cpus), 3)})
        for s in rows_of(thinned)
    ]


def _windows(samples: pd.DataFrame) -> list[dict[str, float]]:
    """Medians of the clean samples in equal windows of the run."""
    clean = _judged(samples)
    parts = np.array_split(np.arange(len(clean)), max(1, min(NUM_WINDOWS, len(clean) // 5)))
    rows = [clean.iloc[part] for part in parts if len(part)]
    return [
        {"order": float(part["order"].mean()), "deviation": round(float(part["deviation"].median()), 5)}
        for part in rows
    ]


def _judged(samples: pd.DataFrame) -> pd.DataFrame:
    """The clean samples of the first session, or all of it where other processes disturbed every one."""
    first = samples[samples["session"] == 0]
    clean = first[~first["dirty"]]
    return clean if len(clean) else first


def _state_keys(samples: pd.DataFrame) -> tuple[Key, ...]:
    again, dirty = bool((samples["session"] > 0).any()), bool(samples["dirty"].any())
    shown = {"one sample": True, "measured again": again, "disturbed": dirty}
    return tuple(Key(name, color, "") for name, color in _STATES.items() if shown[name])


def _state_color() -> alt.Color:
    return alt.Color("state:N", scale=alt.Scale(domain=list(_STATES), range=list(_STATES.values())), legend=None)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
