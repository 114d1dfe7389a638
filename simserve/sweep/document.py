"""``sweep.json``: every point with its intervals, and the curves. The same bytes whoever ran it, in whatever order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.sweep.curves import build_curves
from simserve.sweep.notes import sweep_notes
from simserve.sweep.pareto import pareto_front
from simserve.sweep.plan import Plan
from simserve.sweep.speedup import build_speedups, speedup_notes
from simserve.tasks.backlog import BacklogTest, pooled
from simserve.tasks.intervals import CONFIDENCE, calibration_sd, interval
from simserve.tasks.metric_names import dotted
from simserve.tasks.task import Measures

KIND = "simserve sweep"
SCHEMA_VERSION = 1
MAX_UNANSWERED = 0.01  # of the requests; more, and who was answered stands for who was not
THROUGHPUT = "output_tokens_per_s"

Results = Sequence[Mapping[str, Measures]]


def sweep_document(plan: Plan, measured: Results, drawn: Results, commands: Sequence[str]) -> dict[str, Any]:
    """The document of a plan whose tasks gave ``measured`` and (where noise of calibration was drawn) ``drawn``.

    ``commands`` has one per setting. Points are in order of settings, then variants; ``report`` is null everywhere.
    """
    n = plan.config.replications
    points = []
    for i, name in ((i, name) for i, names in enumerate(plan.names) for name in names):
        runs = [result[name] for result in measured[i * n : (i + 1) * n]]
        draws = [result[name] for result in drawn[i * n : (i + 1) * n]]
        points.append({"settings": plan.settings[i], "variant": name, **_point(runs, draws), "command": commands[i]})
    _mark_front(points, plan.config.metric)
    curves = build_curves(plan, points, measured)
    speedups = build_speedups(plan, measured, drawn)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "scenario": plan.scenario.name,
        "model": plan.model,
        "axes": [{"key": axis.key, "values": list(axis.values), "scale": axis.scale} for axis in plan.axes],
        "load_axis": plan.load_axis,
        **_load_words(plan),
        "replications": n,
        "seeds": plan.seeds,
        "warmup": plan.config.warmup,
        "metric": plan.config.metric,
        "confidence": CONFIDENCE,
        "notes": [*speedup_notes(speedups), *sweep_notes(plan, points, curves, bool(drawn))],
        "step_times": plan.step_times,
        "points": points,
        "curves": curves,
        "speedups": speedups,
    }


def _load_words(plan: Plan) -> dict[str, str]:
    """What a load is called where its key would mislead: the rate of generated sessions is not one of requests."""
    is_of_sessions = (plan.load_axis or "").endswith("rate_rps") and getattr(plan.scenario.workload, "sessions", None)
    return {"load_words": "sessions/s offered"} if is_of_sessions else {}


def _point(runs: Sequence[Measures], draws: Sequence[Measures]) -> dict[str, Any]:
    """One variant at one setting over its replications."""
    columns = _columns(runs)
    drawn = _columns(draws)
    metrics = {
        name: interval(values, calibration_sd(values, drawn[name]), len(draws)) if name in drawn else interval(values)
        for name, values in columns.items()
    }
    test = pooled([BacklogTest.of(measures) for measures in runs])
    return {
        "metrics": metrics,
        "grows": test.grows,
        "growth_tested": test.is_tested,
        "growth_p": test.p_value if test.is_tested else None,
        "stopped_early": sum(measures["backlog"]["stopped_early"] for measures in runs),
        "leaves_unanswered": not test.grows and (metrics["unanswered_share"]["value"] or 0.0) > MAX_UNANSWERED,
        "pareto": False,
        "report": None,
    }


def _columns(runs: Sequence[Measures]) -> dict[str, list[float | None]]:
    """Each measure's value in every replication."""
    rows = [dict(dotted(measures)) for measures in runs]
    names = dict.fromkeys(name for row in rows for name in row)  # a run kept by an older version may lack some
    return {name: [row.get(name) for row in rows] for name in names}


def _mark_front(points: list[dict[str, Any]], metric: str) -> None:
    """Points on the front of all settings and variants. A point whose backlog grows has no latency to speak of, and one
    that leaves requests unanswered that of the others."""
    pairs = [
        (None, None)
        if point["grows"] or point["leaves_unanswered"]
        else tuple(point["metrics"][name]["value"] for name in (THROUGHPUT, metric))
        for point in points
    ]
    for point, is_on_front in zip(points, pareto_front(pairs), strict=True):
        point["pareto"] = is_on_front
