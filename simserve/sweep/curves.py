"""Points joined along the offered load: where each curve turns up, and from where on its backlog grows.

A knee moves with the range that it is looked for in, and there is one of any two loads. It is told only where the sweep
reaches saturation: then the range ends there, whatever the values swept, and it is told with the knee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.sweep.plan import Plan
from simserve.tasks.metric_names import metric_value
from simserve.tasks.task import Measures

MAX_GAIN = 1.05  # in requests/s from a doubling of the load, where it is flat
MUCH_UNANSWERED = 0.1  # at the highest load: more than the service can do, whatever it still gains


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
    unanswered = [load(i) for i in order if points[i]["leaves_unanswered"]]
    end = min([*growing, *unanswered], default=math.inf)
    stable = [i for i in order if load(i) < end]
    reached = bool(growing) or _is_flat([load(i) for i in order], [points[i] for i in order])
    reached = reached or (points[order[-1]]["metrics"]["unanswered_share"]["value"] or 0.0) > MUCH_UNANSWERED
    return {
        **curve,
        "points": order,
        "knee": _knee(plan, stable, [load(i) for i in stable], measured) if reached else None,
        "saturated_from": min(growing, default=None),
        "saturation_reached": reached,
    }


def _is_flat(loads: Sequence[float], points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether requests/s at the highest load exceed those at half of it or less by under 5 %: the plateau of a closed
    loop, or of clients who give up or are turned away."""
    below = [k for k, load in enumerate(loads) if load <= loads[-1] / 2]
    if not below:
        return False
    before, top = (points[k]["metrics"]["requests_per_s"]["value"] for k in (below[-1], -1))
    return bool(before and top is not None and top < MAX_GAIN * before)


def _knee(
    plan: Plan, indices: Sequence[int], loads: Sequence[float], measured: Sequence[Mapping[str, Measures]]
) -> dict[str, Any] | None:
    """The load where the metric turns up, over the points before saturation, with their range; null where there is
    none."""
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
    found = curve_knee(loads, latencies, has_corner=plan.load_axis == "workload.concurrency")
    return {**found, "range": [loads[0], loads[-1]]} if found["value"] is not None else None
