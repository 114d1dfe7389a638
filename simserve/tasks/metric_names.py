"""The names of what is measured, dotted: ``ttft_s.p99``, ``output_tokens_per_s``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simserve.errors import ScenarioError
from simserve.scenario.messages import did_you_mean, printable, shown
from simserve.tasks.measure import LATENCIES

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCY_METRICS = tuple(f"{name}.{statistic}" for name in (*LATENCIES, "itl_s") for statistic in STATISTICS)


def check_metric(metric: str, where: str) -> None:
    """Raise ScenarioError unless ``metric`` is a latency that a run measures."""
    if metric not in LATENCY_METRICS:
        rule = f"must be a latency such as ttft_s.p99 (got {shown(metric)}; {did_you_mean(metric, LATENCY_METRICS)})"
        raise ScenarioError(printable(f"{where}: {rule}"))


def dotted(measures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Every number of a variant's measures by its dotted name, in order; verdicts and the backlog test left aside."""
    for key, value in measures.items():
        if isinstance(value, Mapping):
            if key != "backlog":
                yield from dotted(value, f"{prefix}{key}.")
        elif not isinstance(value, bool):
            yield f"{prefix}{key}", value


def metric_value(measures: Mapping[str, Any], name: str) -> float | None:
    """The number at a dotted name. Raises KeyError."""
    value: Any = measures
    for key in name.split("."):
        value = value[key]
    return None if value is None else float(value)
