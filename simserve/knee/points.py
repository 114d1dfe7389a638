"""A point of a curve: every measure of several replications at one load, each with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simserve.knee.saturation import pooled_backlog
from simserve.tasks.intervals import Interval, interval
from simserve.tasks.task import Measures

_NOT_METRICS = {"slo_quantiles", "backlog"}


def flat(measures: Mapping[str, Any]) -> dict[str, float | None]:
    """Measures under dotted names: ``ttft_s.p99``. What judges a run (its backlog, its SLO quantiles) is left out."""
    found: dict[str, float | None] = {}
    for name, value in measures.items():
        if name in _NOT_METRICS:
            continue
        if isinstance(value, Mapping):
            found.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            found[name] = value
    return found


def curve_point(load: float, runs: Sequence[Measures]) -> dict[str, Any]:
    """``{load, metrics, grows, growth_p}`` of the documents."""
    rows = [flat(run) for run in runs]
    metrics: dict[str, Interval] = {name: interval([row.get(name) for row in rows]) for name in rows[0]}
    test = pooled_backlog(runs)
    p_value = test.p_value if test.is_tested else None
    return {"load": load, "metrics": metrics, "grows": test.grows, "growth_p": p_value}


def latencies_of(grid: Iterable[Sequence[Measures]], metric: str) -> list[list[float | None]]:
    """One metric of runs grouped by load, as a row per replication."""
    columns = [[flat(run).get(metric) for run in runs] for runs in grid]
    return [list(row) for row in zip(*columns, strict=True)]
