"""From a scenario's text to every record: what is assembled from it runs as the slow engine says that it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simserve.scenario import parse_scenario
from simserve.simulate import simulate
from tests.reference_types import Settings, Speculation
from tests.references import run_reference
from tests.strategies import Case
from tests.test_reference_agrees import assert_all_agree

SEED = 5
DRAFTS = {"draft_tokens": 3, "acceptance": [0.9, 0.7, 0.5], "draft": {"cost": 0.1}}
PAGED = {"allocator": "paged", "block_size": 4, "num_blocks": 36, "watermark": 0.05}
BASE: dict[str, Any] = {
    "name": "x",
    "model": "25m",
    "step_time": {"roofline": "h100-sxm"},
    "seed": SEED,
    "workload": {
        "num_requests": 40,
        "arrivals": {"process": "poisson", "rate_rps": 150.0},
        "prompt_tokens": {"uniform": {"low": 2, "high": 40}},
        "output_tokens": {"uniform": {"low": 1, "high": 40}},
        "max_output_tokens": 50,
        "clients": {"timeout_s": 0.15, "retry": {"max_attempts": 2, "backoff_s": 0.01}},
    },
    "engine": {
        "policy": "continuous",
        "max_num_seqs": 6,
        "max_num_batched_tokens": 300,
        "max_model_len": 90,
        "kv_cache": PAGED,
    },
}
PLAIN = Settings("continuous", "paged", 6, 300, 90, num_blocks=36, block_size=4, watermark=0.05)
SPECULATING = replace(PLAIN, speculation=Speculation((0.9, 0.7, 0.5), SEED))
CONTIGUOUS = {"allocator": "contiguous", "block_size": 4, "num_blocks": 36, "reserve": "max_tokens"}
CASES: dict[str, tuple[dict[str, Any], Settings]] = {
    "plain": ({}, PLAIN),
    "drafts": ({"speculation": DRAFTS}, SPECULATING),
    "drafts, chunked": (
        {"speculation": DRAFTS, "policy": "chunked", "max_num_batched_tokens": 30},
        replace(SPECULATING, policy="chunked", max_num_batched_tokens=30),
    ),
    "drafts, prefixes": (
        {"speculation": DRAFTS, "kv_cache": {**PAGED, "prefix_caching": True}},
        replace(SPECULATING, prefix_caching=True),
    ),
    "drafts, contiguous": (
        {"speculation": DRAFTS, "kv_cache": CONTIGUOUS},
        replace(SPECULATING, allocator="contiguous", reserve="max_tokens", watermark=0.0),
    ),
    "drafts alike": (
        {"speculation": {**DRAFTS, "acceptance": 0.8}, "policy": "chunked"},
        replace(SPECULATING, policy="chunked", speculation=Speculation((0.8,) * 3, SEED)),
    ),
    "no cache": ({"kv_cache": "none"}, replace(PLAIN, allocator="none")),
    "no cache, static": (
        {"kv_cache": "none", "policy": "static", "max_wait_s": 0.002},
        replace(PLAIN, allocator="none", policy="static", max_wait_s=0.002),
    ),
    "transformers": (
        {"policy": "transformers", "kv_cache": {**PAGED, "watermark": 0.0}},
        replace(PLAIN, policy="transformers", watermark=0.0, safety_margin=0.15),
    ),
}


@pytest.mark.parametrize(("engine", "settings"), CASES.values(), ids=CASES.keys())
def test_a_scenario_runs_as_the_slow_engine_does(engine: dict[str, Any], settings: Settings) -> None:
    """Forty requests, clients who give up and come again, a cache that binds, drafts by probability and seed."""
    result = simulate(parse_scenario({**BASE, "engine": {**BASE["engine"], **engine}}))
    (variant,), workload = result.variants.values(), result.workload
    case = Case(workload.table, settings, variant.step_time, workload.clients)
    reference = run_reference(case)
    assert_all_agree(variant.records, reference)
    assert sum(ask.status == "finished" for ask in reference.asks) > 3
    if settings.speculation is not None:
        assert 0 < variant.records.num_accepted_tokens < variant.records.num_passes * 3
