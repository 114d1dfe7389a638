"""The measures of a run by name: what they are called, how they are printed, and what is chosen from when charts are
drawn. Shared by the pages of sweeps, knees and capacity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simserve.report.words import NBSP, NOTHING, count, dig, duration, magnitude, number, share

Kind = Literal["duration", "compact", "portion", "whole", "large"]
Interval = Mapping[str, Any]
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
FAMILIES = {"e2e_s": "E2E", "ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "queue_time_s": "queue time"}


@dataclass(frozen=True)
class Measure:
    """A measure's dotted path, its name on the page, and how its numbers are written."""

    path: str
    label: str
    kind: Kind = "compact"

    def text(self, value: float | None) -> str:
        """A number in words."""
        texts = {"duration": duration, "compact": number, "portion": share, "whole": count, "large": magnitude}
        return texts[self.kind](value)


_NAMED = (
    Measure("output_tokens_per_s", "output tokens/s"),
    Measure("total_tokens_per_s", "total tokens/s"),
    Measure("requests_per_s", "requests/s answered"),
    Measure("offered_rps", "requests/s offered"),
    Measure("goodput_rps", "goodput, requests/s"),
    Measure("slo_attainment", "requests that met the SLO", "portion"),
    Measure("lowest_slo_attainment", "requests that met the SLO, of the tenant with the fewest", "portion"),
    Measure("fairness.speed", "Jain's index of speed (tokens per second of E2E)"),
    Measure("fairness.slo_attainment", "Jain's index of requests that met the SLO"),
    Measure("mean_batch_size", "batch size, mean"),
    Measure("mean_running", "sequences in flight, mean"),
    Measure("mean_waiting", "requests waiting, mean"),
    Measure("busy_share", "time busy", "portion"),
    Measure("kv_used", "cache filled", "portion"),
    Measure("prefix_hit_rate", "prefix hits, of tokens looked up", "portion"),
    Measure("prefix_hit_bound", "prefix hits with an infinite cache", "portion"),
    Measure("num_preemptions", "preemptions"),
    Measure("computed_tokens", "tokens computed", "large"),
    Measure("model_macs", "multiply-adds", "large"),
    Measure("tokens_per_pass", "tokens per pass of speculation"),
    Measure("acceptance_rate", "drafts accepted", "portion"),
    Measure("num_rejected", "rejected"),
    Measure("num_turned_away", "turned away (429)"),
    Measure("num_timed_out", "timed out"),
    Measure("num_cancelled", "cancelled"),
    Measure("unanswered_share", "requests not answered", "portion"),
    Measure("extrapolated_step_share", "steps outside the measured range", "portion"),
)
_BY_PATH = {measure.path: measure for measure in _NAMED} | {
    f"{family}.{statistic}": Measure(f"{family}.{statistic}", f"{name} {statistic}", "duration")
    for family, name in FAMILIES.items()
    for statistic in STATISTICS
}


def measure_of(path: str) -> Measure:
    """The measure at a dotted path; one that has no name here goes by its path. ``ttft_p99`` is ``ttft_s.p99``."""
    path = dotted(path)
    known = _BY_PATH.get(path)
    if known is not None:
        return known
    family, _, statistic = path.partition(".")
    is_time = family.endswith("_s") and not family.endswith("per_s")
    return Measure(path, f"{FAMILIES.get(family, family)} {statistic}".strip(), "duration" if is_time else "compact")


def dotted(path: str) -> str:
    """``ttft_p99`` and ``ttft_s_p99``, as people write SLOs, in the form of the documents: ``ttft_s.p99``."""
    family, _, statistic = path.replace(".", "_").rpartition("_")
    family = family if family.endswith("_s") else f"{family}_s"
    return f"{family}.{statistic}" if family in FAMILIES and statistic[:1] in "mp" and statistic else path


def interval_of(metrics: Mapping[str, Any], path: str) -> Interval:
    """The interval of a measure, an empty one where it was not measured; a bare number is an interval of itself."""
    found = metrics.get(path)
    if isinstance(found, int | float):
        return {"value": found}
    return found if isinstance(found, Mapping) else {}


def interval_text(interval: Interval | None, measure: Measure) -> str:
    """``1.02 s (0.98 s to 1.06 s)``, without the bounds where there are none."""
    found = interval or {}
    value, low, high = (dig(found, key) for key in ("value", "low", "high"))
    if value is None:
        return NOTHING
    if low is None or high is None:
        return measure.text(value)
    return f"{measure.text(value)} ({measure.text(low)}{NBSP}to{NBSP}{measure.text(high)})"


def known(points: Iterable[Mapping[str, Any]], paths: Iterable[str]) -> list[Measure]:
    """The measures of ``paths`` for which at least one point has a number, in their order."""
    rows = list(points)
    return [
        measure_of(path)
        for path in paths
        if any(dig(interval_of(row["metrics"], path), "value") is not None for row in rows)
    ]
