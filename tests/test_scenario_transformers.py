"""``policy: transformers`` from a scenario's text to what runs, and what it cannot be combined with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.assemble import assemble
from simserve.errors import ScenarioError
from simserve.kv_cache import PrefixCachingAllocator
from simserve.scenario import Scenario, load_scenario
from simserve.scheduling import TransformersScheduler
from simserve.simulate import simulate
from tests.real_engines import ask_skewed64
from tests.scenario_builders import small, write

ROOFLINE = {"roofline": "h100-sxm", "dtype": "bf16"}


def scenario(tmp_path: Path, **changes: Any) -> Scenario:
    """The 64 requests, all at once, on 8 slots and 30 blocks of 16."""
    rows = [f"0,{len(each.prompt)},{each.num_output_tokens}" for each in ask_skewed64("skewed64_tiny")]
    (tmp_path / "t.csv").write_text("\n".join(["arrival_s,num_prompt_tokens,num_output_tokens", *rows]) + "\n")
    told = small(
        step_time=ROOFLINE,
        workload={"trace": "t.csv"},
        engine__policy="transformers",
        engine__max_num_seqs=8,
        engine__max_num_batched_tokens=512,
        engine__kv_cache__num_blocks=30,
    )
    for path, value in changes.items():
        *parents, key = path.split("__")
        section = told
        for parent in parents:
            section = section[parent]
        section[key] = value
    return load_scenario(write(tmp_path, told))


def test_the_engine_s_own_step_count(tmp_path: Path) -> None:
    """356 steps with 30 blocks, the default margin, and a watermark in the file that nobody uses."""
    result = simulate(scenario(tmp_path))
    (variant,) = result.variants.values()
    assert (variant.records.num_steps, variant.records.num_preemptions) == (356, 16)
    assert variant.summary["num_finished"] == 64 and variant.summary["num_rejected"] == 0


def test_the_margin_reaches_the_policy(tmp_path: Path) -> None:
    """Without any, more is admitted, and more often somebody starves."""
    parts = assemble(scenario(tmp_path, engine__safety_margin=0.0))
    assert isinstance(parts.scheduler, TransformersScheduler)
    (with_margin,) = simulate(scenario(tmp_path)).variants.values()
    (without,) = simulate(scenario(tmp_path, engine__safety_margin=0.0)).variants.values()
    assert without.records.num_preemptions > with_margin.records.num_preemptions


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine__kv_cache": {"allocator": "contiguous", "num_blocks": 64}}, "needs kv_cache.allocator: paged"),
        ({"engine__kv_cache__prefix_caching": True}, "works without kv_cache.prefix_caching only .got true"),
        (
            {
                "engine__kv_cache__preemption": "swap",
                "engine__kv_cache__swap": {"space": "1GiB", "bandwidth_bytes_per_s": 1e9},
            },
            "works with kv_cache.preemption: recompute only .got swap",
        ),
        ({"engine__queue_order": "priority"}, "works with queue_order: fcfs only .got priority"),
        ({"engine__safety_margin": 1.5}, "engine.safety_margin: must be ≤ 1.0 .got 1.5"),
        ({"engine__policy": "chunked", "engine__safety_margin": 0.1}, "safety_margin"),
        ({"engine__kv_cache__nameless_first": True}, "nameless_first: is used by prefix_caching: true only"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Named, with the value, and nothing runs."""
    with pytest.raises(ScenarioError, match=words) as caught:
        scenario(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_the_order_of_free_blocks_reaches_the_cache(tmp_path: Path) -> None:
    """vLLM 0.32's, where the scenario says so."""
    cache = {"allocator": "paged", "num_blocks": 30, "prefix_caching": True}
    for order in (True, False):
        changes = {"engine__policy": "chunked", "engine__kv_cache": {**cache, "nameless_first": order}}
        allocator = assemble(scenario(tmp_path, **changes)).scheduler.pool.allocator
        assert isinstance(allocator, PrefixCachingAllocator) and allocator._nameless_first is order
