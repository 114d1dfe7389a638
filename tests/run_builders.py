"""A finished run made by hand: two variants of a small scenario, no engine behind them."""

from __future__ import annotations

from types import SimpleNamespace

from simserve.metrics import summarize
from simserve.scenario import parse_scenario
from simserve.simulated_model import simulated_model
from simserve.step_time.source import StepTimeSource
from simserve.workload import Workload
from tests.record_builders import S, Served, add_gaps, add_span, records_of

SCENARIO = {
    "name": "two",
    "model": "qwen2.5-0.5b",
    "step_time": {"roofline": "h100-sxm"},
    "workload": {
        "num_requests": 3,
        "arrivals": {"process": "constant", "rate_rps": 1.0},
        "prompt_tokens": {"fixed": 10},
        "output_tokens": {"fixed": 2},
    },
    "engine": {
        "policy": "continuous",
        "max_num_seqs": 2,
        "max_num_batched_tokens": 256,
        "max_model_len": 256,
        "kv_cache": {"allocator": "paged", "block_size": 16, "num_blocks": 32},
    },
    "slo": {"ttft_s": 1.0},
    "variants": {"slow": {}, "fast": {}},
}
SOURCE = StepTimeSource("h100-sxm", "roofline", "H100 SXM", False, None, "a datasheet's figures")


def two_variants(notes=()):
    """The shape of ``RunResult``: ``fast`` has half the latencies of ``slow``; one request of three is rejected."""
    scenario = parse_scenario(SCENARIO)
    variants = {name: _variant(name, scenario, factor) for name, factor in (("slow", 2.0), ("fast", 1.0))}
    workload = Workload(variants["slow"].records.requests.table, tuple(notes))
    return SimpleNamespace(scenario=scenario, workload=workload, variants=variants)


def _variant(name, scenario, factor):
    served = [Served(t, t, t + factor / 2, t + factor, 2) for t in (0.0, 1.0)]
    records = records_of(*served, num_rejected=1, capacity_tokens=512)
    end = 1 + factor
    add_span(records, 0, end, num_steps=4, num_seqs=1, num_emitted_tokens=4, kv_used_begin=10, kv_used_end=20)
    add_gaps(records, [factor / 2] * 2)
    half, whole = round(factor / 2 * S), round(factor * S)
    records.occupancy.rows.append([0, 0, 0, half, whole, whole + 7000])
    records.occupancy.rows.append([1, 1, S, S + half, S + whole, S + whole])
    return SimpleNamespace(
        name=name,
        scenario=scenario,
        model=simulated_model(scenario),
        step_time=SimpleNamespace(source=SOURCE),
        records=records,
        summary=summarize(records, scenario.slo),
    )
