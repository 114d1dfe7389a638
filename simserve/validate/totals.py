"""A run of which only sums and quantiles were kept: scored against a simulation of the scenario's own requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.errors import RunError
from simserve.recorded.aggregates import RecordedAggregates
from simserve.scenario.messages import printable
from simserve.validate.observed import Observed, figures
from simserve.validate.score import nested, score

NO_CURVES: dict[str, Any] = {"levels": [], "latencies": {}, "over_time": None}


def totals_metrics(
    totals: Sequence[RecordedAggregates], predicted: Observed, drawn: Sequence[Observed]
) -> dict[str, Any]:
    """``metrics`` of the document: of the requests that finished, on either side. Raises RunError when the run is of
    another number of requests, or none finished."""
    for one in totals:
        if one.num_requests != len(predicted):
            raise RunError(
                printable(
                    f"{one.source}: must have as many requests as the scenario's workload, {len(predicted):,} (got "
                    f"{one.num_requests:,}); give the workload that it was made with"
                )
            )
        if not one.num_finished:
            raise RunError(printable(f"{one.source}: must have a request that finished (got none)"))
    simulated = [figures(one, one.finished) for one in (predicted, *drawn)]
    measured = [dict.fromkeys(simulated[0]) | one.figures() for one in totals]  # None for what nobody tells
    return nested(score(measured, simulated[:1], simulated[1:]))
