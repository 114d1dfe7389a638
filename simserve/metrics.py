"""Every formula that turns raw records into the numbers of ``summary.json``, once.

Latencies are over finished requests. A rate runs from the first arrival to the last completion; a *steady* rate over
the middle of that: its first and last tenth (warm-up and cool-down) are cut off.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from simserve.distributions import Description, FloatColumn, describe, describe_bins
from simserve.fairness import by_tenant, good_requests
from simserve.model_spec import ModelSpec
from simserve.records import CANCELLED, FINISHED, NEVER, REJECTED, TIMED_OUT, Records, RequestRecords, itl_bin_edges_s
from simserve.request import IntColumn, LookUp
from simserve.step_time.stretch import NS_PER_S
from simserve.timeline import SpanIntegral, timeline

__all__ = [
    "LATENCIES",
    "SloTargets",
    "latencies",
    "look_up_columns",
    "model_macs",
    "request_columns",
    "speculation",
    "summarize",
    "timeline",
]

STEADY_CUT = 0.1
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queue_time_s", "service_time_s", "normalized_latency_s")

Mask = npt.NDArray[np.bool_]


class SloTargets(Protocol):
    """Latencies, in seconds, that a request must not exceed; null asks for nothing."""

    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float | None: ...


def summarize(records: Records, slo: SloTargets | None = None, model: ModelSpec | None = None) -> dict[str, Any]:
    """One variant's object in ``summary.json``: plain ints, floats and nulls (a mean of nothing is null).

    ``mean_batch_size`` counts the rows that a step computes, finished members of a static batch included;
    ``wasted_slot_share`` is the share of their time that such members held, ``prompt_padding_share`` the share of
    prefilled tokens that were padding. Cache shares and ``mean_running`` are time-weighted from first arrival to last
    completion. ``computed_tokens`` were pushed through the model, ``padding_tokens`` beside them for nobody;
    ``model_macs`` are the multiply-accumulates of all steps, padding included, by the dimensions of ``model`` (null
    without): products with weights and attention, drafting apart. ``tenants`` and ``fairness`` are there where the
    workload has tenants.
    """
    requests = records.requests
    columns = latencies(requests)
    finished = requests.status == FINISHED
    window_ns = _window_ns(requests, finished)
    good = good_requests(columns, finished, slo, requests.table.tenants)
    makespan_s = float(window_ns[1] - window_ns[0]) / NS_PER_S
    spans = SpanIntegral(records.spans.columns())
    return {
        "num_requests": len(requests.table),
        "num_finished": int(finished.sum()),
        "num_rejected": int((requests.status == REJECTED).sum()),
        "num_cancelled": int((requests.status == CANCELLED).sum()),
        "num_timed_out": int((requests.status == TIMED_OUT).sum()),
        "num_turned_away": records.num_turned_away,
        "num_attempts": int(requests.num_attempts.sum()),
        "output_tokens": int(requests.num_emitted_tokens[finished].sum()),
        "makespan_s": makespan_s,
        **_throughput(requests, finished, window_ns),
        "steady": _steady(requests, finished, spans, window_ns),
        **_goodput(good, window_ns),
        **{name: describe(columns[name]) for name in LATENCIES},
        "itl_s": _itl(records),
        **_steps(records, spans, window_ns),
        "model_macs": None if model is None else model_macs(records, spans, model),
        "num_preemptions": records.num_preemptions,
        "recomputed_tokens": records.num_recomputed_tokens,
        "abandoned_tokens": _abandoned_tokens(requests, finished),
        "swapped_bytes": records.swapped_bytes,
        "kv_cache": _kv_cache(records, spans, window_ns),
        "speculation": speculation(records) if records.draft_tokens else None,
        **by_tenant(requests, columns, good, makespan_s),
    }


def speculation(records: Records) -> dict[str, int | float]:
    """What passes gave; one is counted for each sequence in it. ``accepted_tokens`` are all that agreed, those beyond
    an answer's end too (as vLLM counts them), so that their rate is that of the drafts; ``tokens_per_pass`` counts what
    came out; ``rejected_tokens`` were computed and rolled back."""
    num_passes, drafted = records.num_passes, records.num_passes * records.draft_tokens
    num_emitted = num_passes + drafted - records.num_rejected_tokens
    return {
        "num_passes": num_passes,
        "drafted_tokens": drafted,
        "accepted_tokens": records.num_accepted_tokens,
        "rejected_tokens": records.num_rejected_tokens,
        "acceptance_rate": records.num_accepted_tokens / max(1, drafted),
        "tokens_per_pass": num_emitted / max(1, num_passes),
    }


def request_columns(requests: RequestRecords) -> dict[str, FloatColumn | IntColumn]:
    """One row per request in the words of the glossary: seconds and tokens, NaN for what never happened."""
    table = requests.table
    times = ("first_scheduled", "first_token", "last_token", "end")
    return {
        "arrival_s": _elapsed_s(0, requests.arrival_ns),
        "num_prompt_tokens": table.num_prompt_tokens,
        "num_output_tokens": table.num_output_tokens,
        "max_output_tokens": table.max_output_tokens,
        "priority": table.priority,
        **{f"{name}_s": _elapsed_s(0, getattr(requests, f"{name}_ns")) for name in times},
        **latencies(requests),
        "num_emitted_tokens": requests.num_emitted_tokens,
        "num_preemptions": requests.num_preemptions,
        "num_recomputed_tokens": requests.num_recomputed_tokens,
        "num_attempts": requests.num_attempts,
        "away_s": requests.away_ns / NS_PER_S,
        "num_computed_tokens": requests.num_computed_tokens,
        "num_prefix_hit_tokens": requests.num_prefix_hit_tokens,
    }


def look_up_columns(records: Records) -> dict[str, IntColumn]:
    """One row per request: what its attempts looked for in a prefix cache when they were first admitted, in tokens."""
    columns, num_requests = records.look_ups.columns(), len(records.requests.table)
    ids = columns["request_id"]
    sums = {name: np.bincount(ids, columns[name], num_requests).astype(np.int64) for name in LookUp._fields}
    return {name.replace("num_tokens", "num_looked_up_tokens"): column for name, column in sums.items()}


def latencies(requests: RequestRecords) -> dict[str, FloatColumn]:
    """The columns ``LATENCIES`` of finished requests in seconds, NaN for the others.

    E2E is what the client sees (delivery − arrival, of its first attempt if there were several); TTFT and TPOT use the
    times when tokens were computed (TPOT as in vLLM's benchmarks, NaN for one token); normalized latency is E2E per
    output token (PagedAttention, SOSP 2023).
    """
    arrival_ns = requests.arrival_ns
    num_outputs = requests.num_emitted_tokens
    finished = requests.status == FINISHED
    e2e = np.where(finished, _elapsed_s(arrival_ns, requests.end_ns), np.nan)
    queue_time = np.where(finished, _elapsed_s(arrival_ns, requests.first_scheduled_ns), np.nan)
    gaps = np.where(finished & (num_outputs > 1), num_outputs - 1.0, np.nan)
    columns = (
        np.where(finished, _elapsed_s(arrival_ns, requests.first_token_ns), np.nan),
        _elapsed_s(requests.first_token_ns, requests.last_token_ns) / gaps,
        e2e,
        queue_time,
        e2e - queue_time,
        e2e / np.maximum(num_outputs, 1),
    )
    return dict(zip(LATENCIES, columns, strict=True))


def _elapsed_s(begin_ns: IntColumn | int, end_ns: IntColumn) -> FloatColumn:
    return np.where(end_ns == NEVER, np.nan, (end_ns - begin_ns) / NS_PER_S)


def _window_ns(requests: RequestRecords, finished: Mask) -> FloatColumn:
    """First arrival and last completion; both the same when nothing finished."""
    if not finished.any():
        return np.zeros(2)
    sent = requests.arrival_ns[requests.arrival_ns != NEVER]
    return np.array([sent.min(), requests.end_ns[finished].max()], np.float64)


def _per_s(count: float, window_ns: FloatColumn) -> float:
    width_ns = float(window_ns[1] - window_ns[0])
    return float(count) * NS_PER_S / width_ns if width_ns > 0 else 0.0


def _abandoned_tokens(requests: RequestRecords, finished: Mask) -> int:
    """Tokens that were computed for answers that nobody got: the work of attempts that clients gave up."""
    table = requests.table
    useful = table.num_prompt_tokens + table.num_output_tokens - 1 + requests.num_recomputed_tokens
    useful -= requests.num_prefix_hit_tokens
    return int((requests.num_computed_tokens - np.where(finished, useful, 0)).sum())


def _throughput(requests: RequestRecords, finished: Mask, window_ns: FloatColumn) -> dict[str, float]:
    outputs = requests.num_emitted_tokens[finished].sum()
    prompts = requests.table.num_prompt_tokens[finished].sum()
    return {
        "output_tokens_per_s": _per_s(outputs, window_ns),
        "total_tokens_per_s": _per_s(prompts + outputs, window_ns),
        "requests_per_s": _per_s(finished.sum(), window_ns),
    }


def _steady(
    requests: RequestRecords, finished: Mask, spans: SpanIntegral, window_ns: FloatColumn
) -> dict[str, float | int]:
    """Rates in the middle of the run: output tokens as emitted, requests by when they end, prompts by first token."""
    width_ns = window_ns[1] - window_ns[0]
    begin, end = middle = window_ns + np.array([STEADY_CUT, -STEADY_CUT]) * width_ns
    ended = finished & (requests.end_ns >= begin) & (requests.end_ns < end)
    prefilled = finished & (requests.first_token_ns >= begin) & (requests.first_token_ns < end)
    outputs_per_s = float(spans.rates(middle, "num_emitted_tokens")[0])
    return {
        "begin_s": float(begin) / NS_PER_S,
        "end_s": float(end) / NS_PER_S,
        "output_tokens_per_s": outputs_per_s,
        "total_tokens_per_s": outputs_per_s + _per_s(requests.table.num_prompt_tokens[prefilled].sum(), middle),
        "requests_per_s": _per_s(ended.sum(), middle),
    }


def _goodput(good: Mask, window_ns: FloatColumn) -> dict[str, float | None]:
    share = float(good.sum()) / len(good) if len(good) else None
    return {"goodput_rps": _per_s(good.sum(), window_ns), "slo_attainment": share}


def _itl(records: Records) -> Description:
    """Gaps between tokens: their mean and maximum exactly, percentiles from bins less than 1 % wide; those in the first
    bin, of tokens that came together, are 0."""
    num_gaps, edges = int(records.itl_counts.sum()), itl_bin_edges_s()
    mean = records.itl_sum_ns / NS_PER_S / num_gaps if num_gaps else 0.0
    described = describe_bins(records.itl_counts, edges, mean, records.itl_max_s)
    return {name: 0.0 if name != "mean" and value and value <= edges[1] else value for name, value in described.items()}


def _steps(records: Records, spans: SpanIntegral, window_ns: FloatColumn) -> dict[str, int | float]:
    """What the steps were made of; shares are 0 when no step ran."""
    columns = spans.columns
    steps = columns["num_steps"]
    num_steps = max(1, int(steps.sum()))
    rows = int((columns["num_seqs"] * steps).sum())
    running = columns["num_running_begin"]
    return {
        "mean_batch_size": rows / num_steps,
        "num_steps": records.num_steps,
        "mean_running": float(spans.column_means(window_ns, "num_running")[0]),
        "peak_running": int(running.max(initial=0)),
        "mean_waiting": float(spans.column_means(window_ns, "num_waiting")[0]),
        "busy_share": float(spans.busy_shares(window_ns)[0]),
        "wasted_slot_share": _wasted_slot_share(spans, window_ns),
        "prompt_padding_share": _prompt_padding_share(records, spans),
        "computed_tokens": records.num_computed_tokens,
        "padding_tokens": records.num_padding_tokens,
        "extrapolated_step_share": int(columns["num_extrapolated_steps"].sum()) / num_steps,
    }


def model_macs(records: Records, spans: SpanIntegral, model: ModelSpec) -> int:
    """Every token meets the weights of all layers, one row per sequence and step (and each verified draft's) the output
    head, every (query, key) pair the scores and the weighted sum."""
    columns = spans.columns
    rows = int((columns["num_seqs"] * columns["num_steps"]).sum()) + records.num_passes * records.draft_tokens
    tokens = records.num_computed_tokens + records.num_padding_tokens
    return (model.matmul_flops(tokens, rows) + model.attention_flops(records.num_attention_pairs)) // 2


def _prompt_padding_share(records: Records, spans: SpanIntegral) -> float:
    """Padding over what was prefilled; without a cache every token is, those of finished members too."""
    if records.capacity_tokens == 0:
        return records.num_padding_tokens / max(1, records.num_computed_tokens + records.num_padding_tokens)
    columns = spans.columns
    prefilled = int((columns["num_prefill_tokens"] * columns["num_steps"]).sum())
    return (records.num_padding_tokens - int(columns["num_finished_held"].sum())) / max(1, prefilled)


def _wasted_slot_share(spans: SpanIntegral, window_ns: FloatColumn) -> float:
    """Time of slots held by finished members of static batches over that of all rows: a long prefill counts as long."""
    if not spans.columns["num_finished_held"].any():
        return 0.0
    held, steps = (spans.columns[name].astype(np.float64) for name in ("num_finished_held", "num_steps"))
    held_rows = np.divide(held, steps, out=np.zeros_like(held), where=steps > 0)  # constant in a span
    mean_rows = float(spans.column_means(window_ns, "num_seqs")[0])
    return float(spans.means(window_ns, held_rows)[0]) / mean_rows if mean_rows > 0 else 0.0


def _kv_cache(records: Records, spans: SpanIntegral, window_ns: FloatColumn) -> dict[str, int | float]:
    """Time-weighted shares of the cache's capacity, and what a prefix cache saved.

    ``prefix_hit_rate`` is what vLLM's metric counts: of the prompt tokens of sequences admitted for the first time, the
    share that was found. ``prefix_hit_tokens`` has what preempted ones found again too.
    """
    capacity = max(1, records.capacity_tokens)
    peak_used = max(int(spans.columns[f"kv_used_{end}"].max(initial=0)) for end in ("begin", "end"))

    def mean(part: str) -> float:
        return float(spans.column_means(window_ns, f"kv_{part}")[0]) / capacity

    return {
        "capacity_tokens": records.capacity_tokens,
        "mean_used": mean("used"),
        "mean_reserved_unused": mean("reserved_unused"),
        "mean_internal_fragmentation": mean("internal"),
        "mean_external_fragmentation": mean("external"),
        "peak_used": peak_used / capacity,
        "mean_cached_free": mean("cached_free"),
        "prefix_hit_rate": records.num_found_tokens / max(1, records.num_looked_up_tokens),
        "prefix_hit_tokens": records.num_prefix_hit_tokens,
        "prefix_evictions": records.num_prefix_evictions,
        **_prefix(records),
    }


def _prefix(records: Records) -> dict[str, int | float]:
    """First admissions' look-ups: tokens known, found, evicted before they were asked for again (so computed again),
    and asked for before but not computed by then; the rest was never asked for. ``prefix_hit_bound`` is the rate of an
    infinite cache in which whatever was asked for before is there at once."""
    columns = records.look_ups.columns()
    looked_up, found, evicted, bound = (int(columns[name].sum()) for name in LookUp._fields)
    return {
        "prefix_hit_bound": bound / max(1, looked_up),
        "prefix_looked_up_tokens": looked_up,
        "prefix_found_tokens": found,
        "prefix_evicted_tokens": evicted,
        "prefix_pending_tokens": bound - found - evicted,
    }
