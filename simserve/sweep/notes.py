"""What a reader of a sweep should know, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.scenario import GeneratedWorkload, TenantsWorkload
from simserve.sweep.plan import Plan
from simserve.tasks.backlog import MIN_REQUESTS as FEWEST
from simserve.tasks.warmup import MIN_REQUESTS, SHARE

MAX_NAMED = 5


def sweep_notes(
    plan: Plan, points: Sequence[Mapping[str, Any]], curves: Sequence[Mapping[str, Any]], has_draws: bool
) -> list[str]:
    """How the points were measured, and what is odd about them."""
    notes = [_warmup(plan), _replications(plan, has_draws)]
    num_growing = sum(bool(point["grows"]) for point in points)
    if num_growing:
        notes.append(
            f"the backlog of {num_growing} of {len(points)} points grows (a test over batches of arrivals, p < 0.001): "
            "their latencies depend on how long one looks, and they are on no front and before no knee"
        )
    notes += [*_untested(points), *_unanswered(points), *_knees(plan, curves)]
    num_stopped = sum(point["stopped_early"] for point in points)
    if num_stopped:
        were = "simulation was" if num_stopped == 1 else "simulations were"
        notes.append(f"{num_stopped} {were} ended early, once the growth of the backlog was proved")
    extrapolated = [point for point in points if (point["metrics"]["extrapolated_step_share"]["value"] or 0) > 0.01]
    if extrapolated:
        notes.append(f"more than 1 % of the steps of {len(extrapolated)} points lie outside what was measured")
    users: dict[str, list[str]] = {}
    for name, entry in plan.step_times.items():
        if not entry["calibrated"]:
            users.setdefault(str(entry["name"]), []).append(name)
    for source, names in users.items():
        notes.append(f"uncalibrated: the step times of {', '.join(names)} are {source}, estimated and not measured")
    return [*notes, *plan.notes]


def _untested(points: Sequence[Mapping[str, Any]]) -> list[str]:
    num = sum(not point["growth_tested"] for point in points)
    why = f"a closed loop, clients who gave up or were turned away, all at once, or fewer than {FEWEST} requests"
    return [f"whether the backlog of {num} of {len(points)} points grows is not tested: {why}"] if num else []


def _unanswered(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """The points whose latencies are those of the ones who stayed, by name."""
    found = [point for point in points if point["leaves_unanswered"]]
    if not found:
        return []
    names = "; ".join(_named(point) for point in found[:MAX_NAMED])
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return [
        f"at {len(found)} of {len(points)} points more than 1 % of the requests got no answer ({names}{more}): their "
        "latencies are of those that did, and they are on no front and before no knee"
    ]


def _named(point: Mapping[str, Any]) -> str:
    settings = ", ".join(
        f"{key.rpartition('.')[2]} {f'{value:.4g}' if isinstance(value, float) else value}"
        for key, value in point["settings"].items()
    )
    share = point["metrics"]["unanswered_share"]["value"]
    return f"{point['variant']}{' at ' if settings else ''}{settings}: {share:.0%}"


def _knees(plan: Plan, curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Over which loads knees were looked for, and why some were not."""
    notes = []
    if any(curve["knee"] for curve in curves):
        notes.append(
            f"knees: Kneedle on {plan.config.metric} from the least load swept to the last before saturation; it moves "
            "with that range, and simserve knee chooses its own"
        )
    num_short = sum(not curve["saturation_reached"] for curve in curves)
    if num_short:
        notes.append(f"{num_short} of {len(curves)} curves do not reach saturation and get no knee: sweep higher loads")
    return notes


def _warmup(plan: Plan) -> str:
    warmup, workload = plan.config.warmup, plan.scenario.workload
    if warmup != "auto":
        return f"warm-up: the first {float(warmup):.0%} of the requests are left out" if warmup else "no warm-up is cut"
    if isinstance(workload, GeneratedWorkload | TenantsWorkload) and workload.num_requests >= MIN_REQUESTS:
        return f"warm-up: the first {SHARE:.0%} of the requests are left out"
    return f"no warm-up is cut: that is for generated workloads of at least {MIN_REQUESTS} requests"


def _replications(plan: Plan, has_draws: bool) -> str:
    n = plan.config.replications
    if n == 1:
        return "one replication: no intervals"
    text = (
        f"95 % intervals by Student's t over {n} replications; all settings and variants of a replication meet "
        "the same random numbers"
    )
    if has_draws:
        return f"{text}; widened by {n} bootstrap draws of the measured step times, which no replication narrows"
    return f"{text}; the noise of measured step times is not in them" if plan.is_calibrated else text
