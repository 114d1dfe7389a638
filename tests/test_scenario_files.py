"""The scenarios that we ship load, and hold the workloads that their stories are about."""

from pathlib import Path

import numpy as np
import pytest

from simserve.errors import ScenarioError
from simserve.scenario import RooflineStepTimeConfig, Scenario, TraceWorkload, load_scenario
from simserve.workload import build_workload

FOLDER = Path(__file__).parents[1] / "scenarios"
FOUR = ["static-contiguous", "static-paged", "continuous-contiguous", "continuous-paged"]
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"


def shipped(name: str, *overrides: str) -> Scenario:
    return load_scenario(FOLDER / f"{name}.yaml", overrides)


def test_every_shipped_scenario_loads_and_makes_requests(tmp_path: Path) -> None:
    """No scenario is shipped broken; the one that replays a trace gets a small one."""
    (tmp_path / "t.csv").write_text(TRACE)
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    assert {"azure", "cache64", "chat", "skewed64", "skewed64-burst"} <= set(names)
    for name in names:
        needs_trace = "\n  trace:" in (FOLDER / f"{name}.yaml").read_text()
        scenario = shipped(name, *([f"workload.trace={tmp_path / 't.csv'}"] if needs_trace else []))
        assert scenario.name == name
        assert scenario.resolve_variants()
        workload = build_workload(scenario.workload, scenario.seed, scenario.base_dir)
        assert len(workload.table) >= 1
        needed = workload.table.num_prompt_tokens + workload.table.num_output_tokens
        assert needed.max() <= scenario.engine.max_model_len


@pytest.mark.parametrize("name", ["skewed64", "skewed64-burst", "cache64"])
def test_the_skewed_requests_are_the_measured_ones(name: str) -> None:
    """64 requests: median 18, longest 231, total 1,874 output tokens, prompts of 8: real engines ran these, and no seed
    changes the multiset."""
    for seed in (0, 1):
        scenario = shipped(name, f"seed={seed}")
        table = build_workload(scenario.workload, scenario.seed, scenario.base_dir).table
        outputs = table.num_output_tokens
        assert (len(table), np.median(outputs), outputs.max(), outputs.sum()) == (64, 18, 231, 1874)
        assert set(table.num_prompt_tokens.tolist()) == {8}
        assert set(table.max_output_tokens.tolist()) == {256}


def test_skewed64_compares_the_four_on_eight_slots() -> None:
    """Both skewed64 scenarios name the same four variants, with room for every slot's declared maximum."""
    for name in ("skewed64", "skewed64-burst"):
        scenario = shipped(name)
        assert list(scenario.resolve_variants()) == FOUR
        assert scenario.engine.max_num_seqs == 8
        capacity = (scenario.engine.kv_cache.num_blocks or 0) * scenario.engine.kv_cache.block_size
        assert capacity >= 8 * (8 + 256 + scenario.engine.kv_cache.block_size)
    burst = build_workload(shipped("skewed64-burst").workload, 0, FOLDER).table
    assert not burst.arrival_ns.any()


def test_cache64_gives_every_variant_the_same_bytes_and_too_few_of_them() -> None:
    """Paged and three ways to reserve share one capacity, which is less than what all requests hold together."""
    variants = shipped("cache64").resolve_variants()
    assert list(variants) == ["paged", "contiguous-max-model-len", "contiguous-max-tokens", "contiguous-oracle"]
    assert len({(v.engine.kv_cache.num_blocks, v.engine.kv_cache.block_size) for v in variants.values()}) == 1
    assert (shipped("cache64").engine.kv_cache.num_blocks or 0) * 16 < 64 * 8 + 1874


def test_azure_says_how_to_give_the_trace() -> None:
    """Without a trace the scenario is one sentence with the remedy in it."""
    with pytest.raises(ScenarioError) as caught:
        shipped("azure")
    expected = "azure.yaml: workload.trace: must name the trace file (got null); give it by --set workload.trace=FILE"
    assert str(caught.value) == expected


def test_azure_is_the_engine_that_the_public_trace_is_replayed_on(tmp_path: Path) -> None:
    """Llama-3.1-8B on an H100 by roofline, 25,000 blocks of 16 tokens, every request of the trace admissible."""
    scenario = shipped("azure", f"workload.trace={tmp_path / 't.csv'}")
    assert scenario.model == "llama-3.1-8b"
    assert scenario.step_time == RooflineStepTimeConfig(roofline="h100-sxm", dtype="bf16")
    assert isinstance(scenario.workload, TraceWorkload)
    assert (scenario.engine.policy, scenario.engine.kv_cache.allocator) == ("chunked", "paged")
    assert (scenario.engine.kv_cache.num_blocks, scenario.engine.kv_cache.block_size) == (25_000, 16)
    assert scenario.engine.max_model_len >= 14_089  # the longest request of the 2023 conversation trace
