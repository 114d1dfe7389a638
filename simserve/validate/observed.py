"""A real run and a simulated one in the same columns, and the figures by which they are compared: each formula once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simserve.distributions import Description, FloatColumn, describe, describe_bins
from simserve.recorded.run import RecordedRun
from simserve.recorded.steps import StepRecord
from simserve.records import FINISHED, Records, itl_bin_edges_s
from simserve.request import IntColumn
from simserve.step_time.stretch import NS_PER_S

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
RATES = ("output_tokens_per_s", "requests_per_s")
Figures = dict[str, float | None]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Observed:
    """Requests in order of arrival; integer nanoseconds. ``itl_s`` and the two figures of steps are None where nobody
    noted them; ``gaps_s`` are the gaps themselves, or the middles of their bins with ``gap_counts``."""

    arrival_ns: IntColumn
    first_token_ns: IntColumn
    last_token_ns: IntColumn
    end_ns: IntColumn
    num_output_tokens: IntColumn
    finished: Mask
    itl_s: Description | None = None
    gaps_s: FloatColumn | None = None
    gap_counts: IntColumn | None = None
    mean_batch_size: float | None = None
    num_preemptions: int | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)


def observed_run(run: RecordedRun, num_output_tokens: IntColumn) -> Observed:
    """A recorded run whose requests got ``num_output_tokens``."""
    gaps = run.itl_s
    steps = run.steps or ()
    rows = sum(_rows(step) for step in steps)
    return Observed(
        run.table.arrival_ns,
        run.first_token_ns,
        run.last_token_ns,
        run.end_ns,
        num_output_tokens,
        run.finished,
        itl_s=None if gaps is None or not len(gaps) else describe(gaps),
        gaps_s=gaps,
        mean_batch_size=rows / len(steps) if steps else run.mean_batch_size,
        num_preemptions=run.num_preemptions,
    )


def _rows(step: StepRecord) -> int:
    """Rows that the model computes: in decode steps of a static batch those of finished members too."""
    return len(step.prefills) + (len(step.decodes) if step.prefills else step.num_batched_tokens)


def observed_records(records: Records, mean_batch_size: float) -> Observed:
    """A simulated run. The gaps between its tokens are known by bins less than 1 % wide, their mean exactly."""
    requests = records.requests
    num_gaps = int(records.itl_counts.sum())
    mean = records.itl_sum_ns / NS_PER_S / num_gaps if num_gaps else 0.0
    edges = itl_bin_edges_s()
    filled = np.flatnonzero(records.itl_counts)
    return Observed(
        requests.arrival_ns,
        requests.first_token_ns,
        requests.last_token_ns,
        requests.end_ns,
        requests.table.num_output_tokens,
        requests.status == FINISHED,
        itl_s=describe_bins(records.itl_counts, edges, mean, records.itl_max_s) if num_gaps else None,
        gaps_s=np.sqrt(edges[filled] * edges[filled + 1]),
        gap_counts=records.itl_counts[filled],
        mean_batch_size=mean_batch_size,
        num_preemptions=records.num_preemptions,
    )


def latency_columns(run: Observed, counted: Mask) -> dict[str, FloatColumn]:
    """TTFT, TPOT and E2E in seconds, a row per request; NaN for those that are not ``counted``, and for the TPOT of a
    single token. E2E ends when the client has its whole answer."""
    gaps = np.where(counted & (run.num_output_tokens > 1), run.num_output_tokens - 1.0, np.nan)
    return {
        "ttft_s": np.where(counted, run.first_token_ns - run.arrival_ns, np.nan) / NS_PER_S,
        "tpot_s": (run.last_token_ns - run.first_token_ns) / gaps / NS_PER_S,
        "e2e_s": np.where(counted, run.end_ns - run.arrival_ns, np.nan) / NS_PER_S,
    }


def figures(run: Observed, counted: Mask) -> Figures:
    """Every compared figure by its dotted name, over the ``counted`` requests; None where it is not known.

    Rates run from the first arrival to the last completion, as in ``summary.json``.
    """
    found: Figures = {}
    described: dict[str, Any] = {name: describe(column) for name, column in latency_columns(run, counted).items()}
    described["itl_s"] = run.itl_s or {}
    for latency in LATENCIES:
        found |= {f"{latency}.{statistic}": described[latency].get(statistic) for statistic in STATISTICS}
    makespan_s = float(run.end_ns[counted].max() - run.arrival_ns.min()) / NS_PER_S if counted.any() else 0.0
    amounts = (float(run.num_output_tokens[counted].sum()), float(counted.sum()))
    found |= {
        f"throughput.{name}": amount / makespan_s if makespan_s > 0 else None
        for name, amount in zip(RATES, amounts, strict=True)
    }
    found["makespan_s"] = makespan_s
    found["mean_batch_size"] = run.mean_batch_size
    found["num_preemptions"] = None if run.num_preemptions is None else float(run.num_preemptions)
    return found
