"""The table of variants: one row per measure, one cell per variant, with its ratio to the first variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simserve.report.words import count, dig, duration, magnitude, number, ratio, share, times

Better = Literal["higher", "lower", ""]
Summaries = Mapping[str, Mapping[str, Any]]
_DIFFER = 1.01  # a smaller ratio is no difference between variants worth a row
_TIE = 5e-4  # relative: nobody reads a smaller difference out of three digits


@dataclass(frozen=True)
class Measure:
    """A row: its label, where its number stands in a summary, how it is printed and which end is good."""

    label: str
    path: str
    text: Callable[[float | None], str]
    better: Better
    meaning: str = ""


@dataclass(frozen=True)
class Cell:
    """A number as printed, its ratio to the first variant, whether it is the best, and its size beside the largest."""

    text: str
    ratio: str
    best: bool
    percent: float


@dataclass(frozen=True)
class MeasureRow:
    measure: Measure
    cells: tuple[Cell, ...]


KEY_MEASURES = (
    Measure("output tokens/s", "output_tokens_per_s", number, "higher", "first arrival to last completion"),
    Measure("requests/s", "requests_per_s", number, "higher"),
    Measure("TTFT, mean", "ttft_s.mean", duration, "lower", "time to first token, queueing included"),
    Measure("TTFT, p99", "ttft_s.p99", duration, "lower"),
    Measure("TPOT, mean", "tpot_s.mean", duration, "lower", "time per output token after the first"),
    Measure("E2E, mean", "e2e_s.mean", duration, "lower", "arrival to the last token, as the client sees it"),
    Measure("E2E, p99", "e2e_s.p99", duration, "lower"),
    Measure("makespan", "makespan_s", duration, "lower", "first arrival to last completion"),
    Measure("cache filled, mean", "kv_cache.mean_used", share, "", "share of the cache that holds tokens"),
)
SPECULATION = (
    Measure("tokens per pass", "speculation.tokens_per_pass", number, "higher", "of a sequence that speculates"),
    Measure("drafts accepted", "speculation.acceptance_rate", share, "higher"),
)
WHERE_THEY_DIFFER = (
    Measure("computed tokens", "computed_tokens", count, "lower", "pushed through the model, prompts included"),
    Measure("multiply-adds", "model_macs", magnitude, "lower", "of weights and attention, by formula"),
    Measure("cache capacity, tokens", "kv_cache.capacity_tokens", count, "higher"),
    Measure("KV bytes per token", "simulated_model.kv_bytes_per_token", count, "lower"),
    Measure("running, peak", "peak_running", count, "", "sequences admitted at once"),
)
GOODPUT = Measure("goodput, requests/s", "goodput_rps", number, "higher", "requests that meet every SLO")
ALL_MEASURES = (
    Measure("requests", "num_requests", count, ""),
    Measure("finished", "num_finished", count, "higher"),
    Measure("rejected", "num_rejected", count, "lower"),
    Measure("cancelled", "num_cancelled", count, "", "their clients left before the answer was there"),
    Measure("timed out", "num_timed_out", count, "lower", "given up for good after a time-out"),
    Measure("answers 429", "num_turned_away", count, "lower", "too many were waiting; a request may get several"),
    Measure("attempts", "num_attempts", count, "", "requests sent, retries included"),
    Measure("output tokens", "output_tokens", count, ""),
    Measure("total tokens/s", "total_tokens_per_s", number, "higher", "prompts included"),
    Measure("output tokens/s, steady", "steady.output_tokens_per_s", number, "higher", "first and last tenth cut off"),
    Measure("SLO attainment", "slo_attainment", share, "higher", "share of requests that meet every SLO named"),
    Measure("Jain's index of speed", "fairness.speed", number, "higher", "tokens per second of E2E, by tenant"),
    Measure("Jain's index of SLO attainment", "fairness.slo_attainment", number, "higher", "by tenant"),
    *(
        Measure(f"{name}, {statistic}", f"{key}.{statistic}", duration, "lower")
        for name, key in (
            ("TTFT", "ttft_s"),
            ("TPOT", "tpot_s"),
            ("ITL", "itl_s"),
            ("E2E", "e2e_s"),
            ("queue time", "queue_time_s"),
            ("service time", "service_time_s"),
            ("normalized latency", "normalized_latency_s"),
        )
        for statistic in ("mean", "p50", "p90", "p95", "p99", "max")
    ),
    Measure("batch size, mean", "mean_batch_size", number, "", "rows that a step computes"),
    Measure("running, mean", "mean_running", number, ""),
    Measure("running, peak", "peak_running", count, ""),
    Measure("waiting, mean", "mean_waiting", number, "lower"),
    Measure("busy", "busy_share", share, "", "share of the time in which steps ran"),
    Measure("slot-time held by finished requests", "wasted_slot_share", share, "lower"),
    Measure("prefilled padding", "prompt_padding_share", share, "lower"),
    Measure("steps", "num_steps", count, "lower"),
    Measure("computed tokens", "computed_tokens", count, "", "pushed through the model, prompts included"),
    Measure("multiply-adds", "model_macs", magnitude, "lower", "of weights and attention, by formula"),
    Measure("padding tokens", "padding_tokens", count, "lower"),
    Measure("preemptions", "num_preemptions", count, "lower"),
    Measure("recomputed tokens", "recomputed_tokens", count, "lower"),
    Measure("tokens for nobody", "abandoned_tokens", count, "lower", "computed in attempts that were given up"),
    Measure("passes with drafts", "speculation.num_passes", count, "", "one per sequence and step"),
    Measure("tokens drafted", "speculation.drafted_tokens", count, ""),
    Measure("drafted tokens accepted", "speculation.accepted_tokens", count, ""),
    Measure("drafts accepted", "speculation.acceptance_rate", share, "higher"),
    Measure("tokens per pass", "speculation.tokens_per_pass", number, "higher"),
    Measure("swapped bytes", "swapped_bytes", count, "lower"),
    Measure("extrapolated steps", "extrapolated_step_share", share, "lower", "outside the measured range"),
    Measure("cache capacity, tokens", "kv_cache.capacity_tokens", count, ""),
    Measure("KV bytes per token", "simulated_model.kv_bytes_per_token", count, ""),
    Measure("KV heads", "simulated_model.num_kv_heads", count, ""),
    Measure("bits per weight", "simulated_model.bits_per_weight", number, ""),
    Measure("bytes of the weights", "simulated_model.weight_bytes", magnitude, ""),
    Measure("cache filled, mean", "kv_cache.mean_used", share, ""),
    Measure("cache filled, peak", "kv_cache.peak_used", share, ""),
    Measure("prefix hit rate", "kv_cache.prefix_hit_rate", share, "higher", "of the tokens looked up at admission"),
    Measure("prefix hit rate, bound", "kv_cache.prefix_hit_bound", share, "", "of an infinite cache"),
    Measure("prefix hits, tokens", "kv_cache.prefix_hit_tokens", count, "higher"),
    Measure("prefix tokens evicted", "kv_cache.prefix_evicted_tokens", count, "lower", "and so computed again"),
    Measure("evicted prefix blocks", "kv_cache.prefix_evictions", count, "lower"),
    Measure("cache free but still known, mean", "kv_cache.mean_cached_free", share, "", "counts as free"),
    Measure("cache reserved and empty, mean", "kv_cache.mean_reserved_unused", share, "lower"),
    Measure("cache never filled, mean", "kv_cache.mean_internal_fragmentation", share, "lower"),
    Measure("cache free but unusable, mean", "kv_cache.mean_external_fragmentation", share, "lower"),
)


def key_rows(summaries: Summaries, has_slo: bool) -> list[MeasureRow]:
    """The rows that most readers want; what variants push through the model and what their caches hold, where they
    differ in it."""
    goal = [GOODPUT] if has_slo else []
    rows = measure_rows(summaries, [*KEY_MEASURES[:2], *goal, *KEY_MEASURES[2:], *SPECULATION])
    return rows + [row for row in measure_rows(summaries, WHERE_THEY_DIFFER) if _differs(row, summaries)]


def all_rows(summaries: Summaries, has_slo: bool) -> list[MeasureRow]:
    """Everything that a summary holds."""
    goals = ("slo_attainment",)
    return measure_rows(summaries, [m for m in ALL_MEASURES if has_slo or m.path not in goals])


def measure_rows(summaries: Summaries, measures: Sequence[Measure]) -> list[MeasureRow]:
    """A row per measure that at least one variant has."""
    rows = []
    for measure in measures:
        values = [dig(summary, measure.path) for summary in summaries.values()]
        if any(value is not None for value in values):
            rows.append(MeasureRow(measure, _cells(measure, values)))
    return rows


def _differs(row: MeasureRow, summaries: Summaries) -> bool:
    values = [dig(summary, row.measure.path) for summary in summaries.values()]
    known = [value for value in values if value is not None]
    return max(known) > _DIFFER * min(known)


def _cells(measure: Measure, values: Sequence[float | None]) -> tuple[Cell, ...]:
    known = [value for value in values if value is not None]
    best = {"higher": max(known), "lower": min(known), "": None}[measure.better]
    differ = max(known) - min(known) > _TIE * max(abs(value) for value in known)
    largest = max(known) if max(known) > 0 else 1.0
    return tuple(
        Cell(
            measure.text(value),
            times(ratio(value, values[0])) if i and ratio(value, values[0]) is not None else "",
            value is not None and best is not None and differ and abs(value - best) <= _TIE * abs(best),
            0.0 if value is None else round(100 * max(value, 0.0) / largest, 1),
        )
        for i, value in enumerate(values)
    )
