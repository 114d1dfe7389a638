"""Points joined along the offered load: where each curve turns up, and from where on its backlog grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.sweep.plan import Plan
from simserve.tasks.metric_names import metric_value
from simserve.tasks.task import Measures


def build_curves(
    plan: Plan, points: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Measures]]
) -> list[dict[str, Any]]:
    """One curve per variant and setting of the other axes, in order of first appearance; none without a load axis."""
    if plan.load_axis is None:
        return []
    curves: dict[tuple[Any, ...], dict[str, Any]] = {}
    for i, point in enumerate(points):
        others = {key: value for key, value in point["settings"].items() if key != plan.load_axis}
        key = (point["variant"], *others.values())
        curves.setdefault(key, {"variant": point["variant"], "settings": others, "points": []})["points"].append(i)
    return [_finished(plan, curve, points, measured) for curve in curves.values()]


def _finished(
    plan: Plan,
    curve: dict[str, Any],
    points: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Measures]],
) -> dict[str, Any]:
    assert plan.load_axis is not None

    def load(i: int) -> float:
        return float(points[i]["settings"][plan.load_axis])

    order = sorted(curve["points"], key=load)
    growing = [load(i) for i in order if points[i]["grows"]]
    saturated_from = min(growing, default=None)
    stable = [i for i in order if saturated_from is None or load(i) < saturated_from]
    knee = _knee(plan, stable, [load(i) for i in stable], measured)
    return {**curve, "points": order, "knee": knee, "saturated_from": saturated_from}


def _knee(
    plan: Plan, indices: Sequence[int], loads: Sequence[float], measured: Sequence[Mapping[str, Measures]]
) -> dict[str, Any] | None:
    """The load where the metric turns up, over the points whose backlog does not grow; null where there is none."""
    from simserve.knee.curve import curve_knee

    n, num_variants = plan.config.replications, plan.num_variants
    latencies: list[list[float | None]] = []
    for r in range(n):
        row = []
        for i in indices:
            setting, variant = divmod(i, num_variants)
            measures = measured[setting * n + r][plan.names[setting][variant]]
            row.append(metric_value(measures, plan.config.metric))
        latencies.append(row)
    found = curve_knee(loads, latencies)
    return dict(found) if found["value"] is not None else None
