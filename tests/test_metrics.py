"""Latencies, rates and shares against their definitions."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.metrics import LATENCIES, latencies, request_columns, summarize
from simserve.records import REJECTED
from tests.record_builders import Served, Slo, add_gaps, add_span, records_of

DESIGN_KEYS = {
    *("num_requests", "num_finished", "num_rejected", "output_tokens", "makespan_s"),
    *("output_tokens_per_s", "requests_per_s", "goodput_rps"),
    *("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_time_s", "service_time_s"),
    *("mean_batch_size", "num_steps", "num_preemptions", "recomputed_tokens", "kv_cache"),
}
DESIGN_KV_KEYS = {
    *("capacity_tokens", "mean_used", "mean_reserved_unused", "mean_external_fragmentation"),
    *("peak_used", "mean_cached_free", "prefix_hit_rate", "prefix_hit_tokens", "prefix_evictions"),
}


def test_latencies_of_one_request_follow_their_definitions():
    """TTFT, TPOT, E2E, queue and service time and normalized latency of a request whose answer waits for its batch."""
    records = records_of(Served(1, 3, 4, 10, num_output_tokens=4, end_s=13))
    row = {name: column[0] for name, column in latencies(records.requests).items()}
    assert row == {
        "ttft_s": 4 - 1,  # queueing included
        "tpot_s": (10 - 4) / (4 - 1),
        "e2e_s": 13 - 1,  # as the client sees it: delivered when the batch ends
        "queue_time_s": 3 - 1,
        "service_time_s": 12 - 2,
        "normalized_latency_s": 12 / 4,
    }


def test_a_single_token_has_no_tpot_but_meets_any_tpot_slo():
    """TPOT is NaN for one token: it is left out of the distribution and cannot miss a target."""
    records = records_of(Served(0, 0, 1, 1, num_output_tokens=1), Served(0, 0, 1, 3, num_output_tokens=3))
    assert np.isnan(latencies(records.requests)["tpot_s"][0])
    summary = summarize(records, Slo(tpot_s=0.5))
    assert summary["tpot_s"]["mean"] == summary["tpot_s"]["max"] == 1.0
    assert summary["goodput_rps"] == pytest.approx(1 / 3)
    assert summary["slo_attainment"] == 0.5


def test_summary_has_every_key_of_the_design_and_is_json_without_nan():
    """summary.json's object holds all agreed keys, and nothing that strict JSON refuses."""
    for records in (records_of(), records_of(num_rejected=2), records_of(Served(0, 0, 1, 1, 1))):
        summary = summarize(records, Slo(ttft_s=1.0))
        assert summary.keys() >= DESIGN_KEYS
        assert summary["kv_cache"].keys() >= DESIGN_KV_KEYS
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_nothing_finished_means_zero_rates_and_null_latencies():
    """A run that rejects everything divides by nothing."""
    summary = summarize(records_of(num_rejected=3))
    assert (summary["num_requests"], summary["num_finished"], summary["num_rejected"]) == (3, 0, 3)
    assert summary["requests_per_s"] == summary["output_tokens_per_s"] == summary["makespan_s"] == 0
    assert all(value is None for name in (*LATENCIES, "itl_s") for value in summary[name].values())


def test_rates_run_from_first_arrival_to_last_completion():
    """Throughput in output tokens, all tokens and requests; rejected requests count in none of them."""
    summary = summarize(
        records_of(Served(2, 2, 3, 4, 30, num_prompt_tokens=50), Served(4, 4, 5, 12, 20), num_rejected=1)
    )
    assert summary["makespan_s"] == 10
    assert summary["output_tokens"] == 50
    assert summary["output_tokens_per_s"] == 5
    assert summary["total_tokens_per_s"] == pytest.approx((50 + 60) / 10)
    assert summary["requests_per_s"] == pytest.approx(0.2)


def test_the_makespan_begins_with_the_first_arrival_even_if_it_is_rejected():
    """Time 0 of a run is its first arrival, whatever became of it."""
    records = records_of(Served(0, 0, 1, 2, 5), Served(6, 6, 7, 10, 5))
    records.requests.status[0] = REJECTED
    summary = summarize(records)
    assert summary["makespan_s"] == 10
    assert summary["output_tokens_per_s"] == pytest.approx(0.5)


def test_steady_prompts_count_when_they_are_prefilled():
    """A prompt was computed by its first token, not by its end: of prompts of 10 and 1,000 the steady window has only
    the one that was prefilled in it, though the other ends in it."""
    records = records_of(Served(0, 0, 0.5, 5, 2, num_prompt_tokens=1000), Served(0, 0, 5, 10, 2, num_prompt_tokens=10))
    steady = summarize(records)["steady"]
    assert steady["total_tokens_per_s"] == pytest.approx(10 / 8)
    assert steady["requests_per_s"] == pytest.approx(1 / 8)


def test_rejected_requests_miss_every_slo():
    """Goodput and its share are of all that were submitted: a server does not get better by refusing."""
    summary = summarize(records_of(Served(0, 0, 1, 2, 2), num_rejected=3), Slo(ttft_s=5.0))
    assert summary["slo_attainment"] == 0.25
    assert summary["goodput_rps"] == pytest.approx(0.5)


def test_percentiles_of_binned_gaps_take_the_nearest_rank():
    """Of three gaps a decade apart, p99 (rank 1.98 of 0 to 2) is the longest and p50 the middle one, to a bin's 1 %."""
    records = records_of(Served(0, 0, 1, 2, 4))
    add_gaps(records, [0.001, 0.01, 0.1])
    itl = summarize(records)["itl_s"]
    assert itl["p50"] == pytest.approx(0.01, rel=0.01)
    assert [itl["p90"], itl["p99"]] == pytest.approx([0.1, 0.1], rel=0.01)


def test_steady_rates_leave_out_the_first_and_last_tenth():
    """Ten tokens a second throughout, except in the first and last tenth of the run: the steady window says ten."""
    records = records_of(*(Served(t, t, t + 0.5, t + 0.5, 1) for t in range(10)), Served(9, 9, 10, 10, 1))
    add_span(records, 0, 1, num_steps=1, num_emitted_tokens=0)
    add_span(records, 1, 9, num_steps=8, num_emitted_tokens=80)
    add_span(records, 9, 10, num_steps=1, num_emitted_tokens=990)
    steady = summarize(records)["steady"]
    assert (steady["begin_s"], steady["end_s"]) == (1, 9)
    assert steady["output_tokens_per_s"] == pytest.approx(10)
    assert steady["requests_per_s"] == pytest.approx(1)  # they end at 1.5, …, 8.5
    assert steady["total_tokens_per_s"] == pytest.approx(10 + 10)  # prompts of ten


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), 3),
        (Slo(ttft_s=1.0), 2),  # exactly at the limit is met
        (Slo(e2e_s=4.0), 2),
        (Slo(ttft_s=1.0, e2e_s=4.0), 1),
        (Slo(ttft_s=1.0, tpot_s=0.1, e2e_s=4.0), 0),
    ],
)
def test_goodput_counts_requests_that_meet_every_slo_named(slo, good):
    """Goodput is the conjunction of the named SLOs, per second of makespan."""
    records = records_of(Served(0, 0, 1, 3, 2), Served(0, 0, 1, 10, 2), Served(0, 0, 2, 4, 2))
    summary = summarize(records, slo)
    assert summary["goodput_rps"] == pytest.approx(good / 10)
    assert summary["slo_attainment"] == pytest.approx(good / 3)


def test_batch_size_is_per_step_and_waste_is_slot_time():
    """A static batch of four rows prefills for 30 s and decodes ten steps of 1 s; one member ends halfway: it holds its
    slot in vain for 5 of 4 × 40 slot-seconds, though for 5 of 44 row-steps."""
    records = records_of(Served(0, 0, 30, 40, 10))
    add_span(records, 0, 30, num_steps=1, num_seqs=4, num_prefill_tokens=40)
    add_span(records, 30, 35, num_steps=5, num_seqs=4, num_decodes=4)
    add_span(records, 35, 40, num_steps=5, num_seqs=4, num_decodes=4, num_finished_held=5)
    records.num_padding_tokens = 12 + 5
    records.num_computed_tokens = 28 + 35
    summary = summarize(records)
    assert summary["mean_batch_size"] == 4
    assert summary["num_steps"] == 11
    assert summary["wasted_slot_share"] == pytest.approx(5 / 160)
    assert summary["prompt_padding_share"] == pytest.approx(12 / 40)


def test_busy_and_extrapolated_shares():
    """Busy is a share of time (idle spans have no steps); extrapolated is a share of steps."""
    records = records_of(Served(0, 6, 8, 8, 1))
    add_span(records, 0, 6)
    add_span(records, 6, 8, num_steps=4, num_seqs=1, num_running_begin=1, num_extrapolated_steps=1)
    summary = summarize(records)
    assert summary["busy_share"] == pytest.approx(0.25)
    assert summary["extrapolated_step_share"] == 0.25
    assert (summary["mean_running"], summary["peak_running"]) == (pytest.approx(0.25), 1)


def test_cache_shares_are_weighted_by_time():
    """A cache that fills linearly from 0 to 80 of 100 in one second and is then 40 full for three: mean 0.40."""
    records = records_of(Served(0, 0, 1, 4, 5), capacity_tokens=100)
    add_span(records, 0, 1, num_steps=1, kv_used_begin=0, kv_used_end=80, kv_reserved_unused_begin=40, kv_external=4)
    add_span(records, 1, 4, num_steps=3, kv_used_begin=40, kv_internal_begin=8, kv_external=4, kv_cached_free_end=16)
    kv_cache = summarize(records)["kv_cache"]
    assert kv_cache == {
        "capacity_tokens": 100,
        "mean_used": pytest.approx((0.4 * 1 + 0.4 * 3) / 4),
        "mean_reserved_unused": pytest.approx(0.1),
        "mean_internal_fragmentation": pytest.approx(0.06),
        "mean_external_fragmentation": pytest.approx(0.04),
        "peak_used": 0.8,
        "mean_cached_free": pytest.approx(0.06),
        "prefix_hit_rate": 0.0,
        "prefix_hit_tokens": 0,
        "prefix_evictions": 0,
        "prefix_hit_bound": 0.0,
        **{f"prefix_{name}_tokens": 0 for name in ("looked_up", "found", "evicted", "pending")},
    }


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-5, 50), min_size=1, max_size=40))
def test_itl_percentiles_are_within_one_percent_of_the_samples(gaps):
    """Log-spaced bins keep every percentile between the neighbouring samples, give or take one bin (< 1 %)."""
    times = np.cumsum([1.0, *gaps])
    records = records_of(Served(0, 0, times[0], times[-1], num_output_tokens=len(times)))
    add_gaps(records, gaps)
    itl = summarize(records)["itl_s"]
    for q in (50, 90, 95, 99):
        low = np.percentile(gaps, q, method="lower")
        high = np.percentile(gaps, q, method="higher")
        assert low / 1.01 <= itl[f"p{q}"] <= high * 1.01
    assert itl["mean"] == pytest.approx(np.mean(gaps), rel=1e-6, abs=1e-9)
    assert itl["max"] == max(gaps)


def test_percentiles_interpolate_linearly():
    """TTFTs of 1, 2, 3, 4, 5 s: p90 is rank 3.6 among them, 4.6 s (numpy's linear)."""
    ttft = summarize(records_of(*(Served(0, 0, t, t, 1) for t in (5, 3, 1, 2, 4))))["ttft_s"]
    assert ttft == pytest.approx({"mean": 3, "p50": 3, "p90": 4.6, "p95": 4.8, "p99": 4.96, "max": 5})


def test_request_columns_keep_what_never_happened_as_nan():
    """A rejected request has an arrival and an end, and no latency."""
    columns = request_columns(records_of(Served(0, 0, 1, 2, 2), num_rejected=1).requests)
    assert {len(column) for column in columns.values()} == {2}
    assert all(math.isnan(columns[name][1]) for name in (*LATENCIES, "first_scheduled_s", "first_token_s"))
    assert columns["arrival_s"][1] == 0
    assert columns["end_s"][1] == 0
