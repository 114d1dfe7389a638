"""How far interpolation is off: the steps that were measured and not fitted, predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from simserve.report.aggregate import log_ticks
from simserve.report.calibration_data import HeldOutStep
from simserve.report.figure import Figure, Key, Table, TopChart, data, duration_axis, duration_tip, finish, share_tip
from simserve.report.words import duration, plural, share
from simserve.step_time.profile_schema import HeldOut, HeldOutError

PHASE_COLORS = {"prefill": "var(--c1)", "decode": "var(--c0)", "mixed": "var(--c2)", "no_cache": "var(--c3)"}
_SHAPES = {"prefill": "square", "decode": "circle", "mixed": "triangle-up", "no_cache": "diamond"}
MAX_LISTED = 60


def error_figures(steps: Sequence[HeldOutStep]) -> list[Figure]:
    """Predicted over measured, and the signed error over the step's length; none without held-out steps."""
    if not steps:
        return []
    keys = phase_keys({step.phase for step in steps})
    worst = max(steps, key=lambda step: abs(step.error))
    inside = sum(abs(step.error) <= 0.05 for step in steps)
    agree = (
        f"Each mark is a step that the tables were not told of. {plural(inside, 'step')} of {len(steps):,} lie within "
        "5 % of the diagonal, where a prediction has no error."
    )
    signed = (
        f"The same steps by their error: above zero the prediction is too slow. The worst is {worst.name}: "
        f"{duration(worst.predicted_s)} predicted, {duration(worst.measured_s)} measured ({signed_share(worst.error)})."
    )
    ordered = sorted(steps, key=lambda step: -abs(step.error))[:MAX_LISTED]
    rows = tuple(
        (step.name, duration(step.measured_s), duration(step.predicted_s), signed_share(step.error)) for step in ordered
    )
    table = Table(("step, worst first", "measured", "predicted", "error"), rows)
    return [
        Figure("error-agreement", "Predicted against measured", agree, finish(_agreement(steps)), None, "", keys),
        Figure("error-signed", "Error of each held-out step", signed, finish(_signed(steps)), table, "", keys),
    ]


def error_table(held_out: HeldOut) -> Table:
    """Mean, p95 and largest error by phase."""
    lines = []
    for phase in type(held_out).model_fields:
        error = getattr(held_out, phase)
        if isinstance(error, HeldOutError):
            figures = (share(error.mean), share(error.p95), share(error.max), share(error.noise))
            lines.append((phase.replace("_", " "), f"{error.num_points:,}", *figures))
    return Table(("held-out steps", "points", "mean error", "p95", "largest", "measured again"), tuple(lines))


def error_sentence(error: HeldOutError) -> str:
    """The error of all phases in words."""
    if error.mean is None:
        return "error not known: nothing was held out"
    return (
        f"{share(error.mean)} on average on {plural(error.num_points, 'held-out point')}, {share(error.max)} at worst"
    )


def signed_share(value: float) -> str:
    """``+2.1 %`` or ``−2.1 %``."""
    return ("+" if value >= 0 else "−") + share(abs(value))


def phase_keys(phases: set[str]) -> tuple[Key, ...]:
    """Legend entries of the phases, in their usual order."""
    return tuple(
        Key(f"{phase.replace('_', ' ')} ({_SHAPES[phase].removesuffix('-up')}s)", PHASE_COLORS[phase], "")
        for phase in PHASE_COLORS
        if phase in phases
    )


def phase_color() -> alt.Color:
    """Colour by the field ``phase``, the same in every chart of the page."""
    scale = alt.Scale(domain=list(PHASE_COLORS), range=list(PHASE_COLORS.values()))
    return alt.Color("phase:N", scale=scale, legend=None)


def phase_shape() -> alt.Shape:
    """Shape by the field ``phase``."""
    return alt.Shape("phase:N", scale=alt.Scale(domain=list(_SHAPES), range=list(_SHAPES.values())), legend=None)


def log_seconds(values: Sequence[float]) -> tuple[alt.Scale, list[float]]:
    """A logarithmic scale of durations that holds ``values``, and its ticks."""
    low, high = min(values) * 0.8, max(values) * 1.25
    return alt.Scale(type="log", domain=[low, high], nice=False), log_ticks(low, high, 6)


def _rows(steps: Sequence[HeldOutStep]) -> list[dict[str, object]]:
    return [
        {
            "phase": step.phase,
            "step": step.name,
            "measured": float(f"{step.measured_s:.5g}"),
            "predicted": float(f"{step.predicted_s:.5g}"),
            "error": round(step.error, 5),
        }
        for step in steps
    ]


def _tooltip() -> list[alt.Tooltip]:
    durations = [duration_tip("measured", "measured"), duration_tip("predicted", "predicted")]
    return [alt.Tooltip("step:N", title="step"), *durations, share_tip("error", "error")]


def _agreement(steps: Sequence[HeldOutStep]) -> TopChart:
    scale, ticks = log_seconds([value for step in steps for value in (step.measured_s, step.predicted_s)])
    ends = [{"measured": at, "predicted": at} for at in scale.domain]
    x = alt.X("measured:Q", axis=duration_axis("measured, logarithmic", ticks), scale=scale)
    y = alt.Y("predicted:Q", axis=duration_axis("predicted, logarithmic", ticks, grid=True), scale=scale)
    diagonal = alt.Chart(data(ends)).mark_line(strokeDash=[4, 4], strokeWidth=1, color="var(--ink-soft)").encode(x, y)
    marks = alt.Chart(data(_rows(steps))).mark_point(size=46, filled=True, opacity=0.85)
    return alt.layer(diagonal, marks.encode(x, y, phase_color(), phase_shape(), tooltip=_tooltip()))


def _signed(steps: Sequence[HeldOutStep]) -> TopChart:
    scale, ticks = log_seconds([step.measured_s for step in steps])
    x = alt.X("measured:Q", axis=duration_axis("measured, logarithmic", ticks), scale=scale)
    most = max(0.05, 1.1 * max(abs(step.error) for step in steps))
    axis = alt.Axis(title="error of the prediction", format="+.0%", tickCount=6, grid=True)
    y = alt.Y("error:Q", axis=axis, scale=alt.Scale(domain=[-most, most], nice=False))
    marks = alt.Chart(data(_rows(steps)))
    zero = alt.Chart(data([{"error": 0}])).mark_rule(color="var(--ink-soft)").encode(alt.Y("error:Q"))
    stems = marks.mark_rule(strokeWidth=1.5, opacity=0.6).encode(x, y, alt.Y2(datum=0), phase_color())
    dots = marks.mark_point(size=46, filled=True).encode(x, y, phase_color(), phase_shape(), tooltip=_tooltip())
    return alt.layer(zero, stems, dots)
