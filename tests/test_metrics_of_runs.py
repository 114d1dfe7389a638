"""Summary, timeline and tables of real runs agree with each other: the same quantity, reached by two ways."""

import numpy as np
import pytest

from simserve.metrics import summarize, timeline
from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from tests.run_builders import SCENARIO

CONTIGUOUS = {"allocator": "contiguous", "reserve": "max_tokens"}
VARIANTS = {
    "static-contiguous": {"engine": {"policy": "static", "kv_cache": CONTIGUOUS}},
    "static-paged": {"engine": {"policy": "static"}},
    "continuous-contiguous": {"engine": {"kv_cache": CONTIGUOUS}},
    "continuous-paged": {},
    "chunked-paged": {"engine": {"policy": "chunked"}},
}


@pytest.fixture(scope="module")
def result():
    """Eighty requests with skewed lengths over a cache that binds."""
    workload = {
        "num_requests": 80,
        "arrivals": {"process": "poisson", "rate_rps": 200.0},
        "prompt_tokens": {"uniform": {"low": 1, "high": 60}},
        "output_tokens": {"lognormal": {"mean": 20, "sigma": 1.0, "max": 90}},
    }
    cache = {"allocator": "paged", "block_size": 16, "num_blocks": 30}
    engine = {**SCENARIO["engine"], "max_num_seqs": 8, "kv_cache": cache}
    return simulate(parse_scenario(SCENARIO | {"workload": workload, "engine": engine, "variants": VARIANTS}))


@pytest.fixture(params=VARIANTS)
def variant(request, result):
    """One variant of the run."""
    return result.variants[request.param]


def test_the_timeline_emits_every_token(variant):
    """∫ output tokens/s dt = output tokens = Σ true lengths (INV-5 for the bins)."""
    frame = timeline(variant.records)
    emitted = float((frame.output_tokens_per_s * (frame.end_s - frame.begin_s)).sum())
    expected = int(variant.records.requests.table.num_output_tokens.sum())
    assert variant.summary["output_tokens"] == expected
    assert emitted == pytest.approx(expected)


def test_running_over_time_is_what_the_slots_were_held(variant):
    """Little's law for the slots: mean_running × makespan = Σ (released − admitted) over all admissions."""
    slots = variant.records.occupancy.columns()
    held_s = float((slots["released_ns"] - slots["admitted_ns"]).sum()) / 1e9
    assert variant.summary["mean_running"] * variant.summary["makespan_s"] == pytest.approx(held_s)


@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if name.startswith("static") or name.endswith("contiguous")]
)
def test_waiting_over_time_is_the_queueing_of_requests(result, name):
    """Little's law for the queue, where nobody is preempted: mean_waiting × makespan ≈ Σ queue time. The spans see an
    arrival in the middle of a stretch only through a straight line between its ends."""
    summary = result.variants[name].summary
    assert summary["num_preemptions"] == 0
    queued_s = summary["queue_time_s"]["mean"] * summary["num_finished"]
    assert summary["mean_waiting"] * summary["makespan_s"] == pytest.approx(queued_s, rel=0.15)


def test_rows_of_all_steps_are_tokens_padding_and_prefills(variant):
    """Σ rows = decoded tokens + rows of finished members + prefill chunks."""
    spans, summary = variant.records.spans.columns(), variant.summary
    rows = summary["mean_batch_size"] * summary["num_steps"]
    decodes = int((spans["num_decodes"] * spans["num_steps"]).sum())
    held = int(spans["num_finished_held"].sum())
    prefills = int(((spans["num_seqs"] - spans["num_decodes"]) * spans["num_steps"]).sum())
    assert rows == pytest.approx(decodes + prefills)
    assert (held > 0) == (summary["wasted_slot_share"] > 0) == variant.name.startswith("static")
    by_prefill = summary["num_finished"] + summary["num_preemptions"]  # each admission's prefill emits once
    assert decodes - held + by_prefill >= summary["output_tokens"]


def test_gaps_are_as_many_as_tokens_less_one_each(variant):
    """Σ over requests of (output tokens − 1) gaps were counted, and their mean lies within the distribution."""
    requests = variant.records.requests
    assert variant.records.itl_counts.sum() == (requests.num_emitted_tokens - 1).sum()
    itl = variant.summary["itl_s"]
    assert 0 < itl["p50"] <= itl["p90"] <= itl["p99"] <= itl["max"]
    assert itl["mean"] <= itl["max"]
    assert itl["max"] >= variant.summary["tpot_s"]["max"]  # no mean gap exceeds the longest


def test_cache_shares_stay_in_the_cache(variant):
    """Used, reserved and both fragmentations are shares that sum to at most one; only contiguous fragments outside."""
    kv = variant.summary["kv_cache"]
    parts = ("mean_used", "mean_reserved_unused", "mean_internal_fragmentation", "mean_external_fragmentation")
    assert all(0 <= kv[part] <= 1 for part in parts)
    assert sum(kv[part] for part in parts) <= 1 + 1e-9
    assert kv["mean_used"] <= kv["peak_used"] <= 1
    if variant.name.endswith("paged"):
        assert kv["mean_external_fragmentation"] == 0
    frame = timeline(variant.records)
    widths = frame.end_s - frame.begin_s
    assert np.average(frame.kv_used_share, weights=widths) == pytest.approx(kv["mean_used"])


def test_goodput_falls_as_targets_tighten(variant):
    """More SLOs, or stricter ones, never raise goodput."""
    slo = variant.scenario.slo
    rates = [
        summarize(variant.records, slo.model_copy(update={"ttft_s": ttft, "e2e_s": e2e}))["goodput_rps"]
        for ttft, e2e in ((None, None), (1.0, None), (0.1, None), (0.1, 0.2), (0.01, 0.2))
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == variant.summary["requests_per_s"]
