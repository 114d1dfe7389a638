"""What is left of a run when only its sums and quantiles were kept: enough to score a simulation, not to replay it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
QUANTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class RecordedAggregates:
    """Figures of a run made elsewhere, in seconds, tokens and requests.

    ``metrics`` has, by latency (those of ``LATENCIES`` that the file tells), ``mean`` and some of ``QUANTILES``.
    ``makespan_s`` is the file's own duration, from the first request to the last answer. ``engine`` says in words what
    served it; ``notes`` are what a reader must know, first of all what is missing.
    """

    source: str
    format: str
    num_requests: int
    num_finished: int
    makespan_s: float | None
    output_tokens_per_s: float | None
    requests_per_s: float | None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    engine: str = ""
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, float | None]:
        """By the dotted names under which a validation compares them; None for what the file does not tell."""
        found = {
            f"{latency}.{statistic}": self.metrics.get(latency, {}).get(statistic)
            for latency in LATENCIES
            for statistic in ("mean", *QUANTILES)
        }
        found["throughput.output_tokens_per_s"] = self.output_tokens_per_s
        found["throughput.requests_per_s"] = self.requests_per_s
        found["makespan_s"] = self.makespan_s
        return found
