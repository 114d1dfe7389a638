"""What a scenario can ask of an engine, and the points that are timed for it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.options import Reach
from calibrate.reach import reach_points
from simserve.scenario import load_scenario
from simserve.validate.reach import reach_of
from simserve.workload import build_workload

PATH = Path(__file__).parents[1] / "scenarios" / "validation" / "skewed64-engines.yaml"


def reach(variant: str, *changes: str) -> dict[str, int]:
    scenario = load_scenario(PATH, changes).resolve_variants()[variant]
    return reach_of(scenario, build_workload(scenario.workload, scenario.seed, scenario.base_dir).table)


def test_the_reach_of_the_shipped_scenario() -> None:
    """Eight slots; no prompt beyond 64 and none cut by 512; eight prompts at most in a step, padded under static
    batching; and no cache beyond the longest prompt and answer together."""
    told = reach("transformers")
    assert (told["max_batch_size"], told["max_chunk_context"]) == (8, 0)
    assert 8 <= told["max_prompt_tokens"] <= 64 and 231 < told["max_context"] <= 64 + 231
    assert told["max_prompt_tokens"] < told["max_prefill_tokens"] <= 8 * told["max_prompt_tokens"]
    assert reach("generate")["max_prefill_tokens"] == 8 * told["max_prompt_tokens"]


def test_limits_narrow_it_and_a_tight_cache_widens_prompts() -> None:
    """A budget of 32 cuts prompts, which then prefill over a context; with few blocks a preempted sequence computes
    again what it had made, as one prompt."""
    cut = reach("transformers", "engine.max_num_batched_tokens=32")
    assert (cut["max_prompt_tokens"], cut["max_prefill_tokens"]) == (32, 32) and cut["max_chunk_context"] > 32
    assert reach("transformers", "engine.max_num_seqs=2", "workload.num_requests=64")["max_batch_size"] == 2
    tight = reach("transformers", "engine.kv_cache.num_blocks=40")
    assert tight["max_prompt_tokens"] == tight["max_context"] == reach("transformers")["max_context"]


REACHES = st.builds(
    Reach, st.integers(1, 40), st.integers(1, 300), st.integers(2, 2000), st.integers(2, 2000), st.integers(0, 300)
)


@given(REACHES, st.booleans(), st.booleans())
def test_points_cover_the_reach_and_stay_within(given_reach: Reach, one_row: bool, mixes: bool) -> None:
    """Every batch size up to 8 and the largest; decodes, prefills and chunks up to the limits and none beyond; two
    tables that can be fitted; no point twice; held-out ones are of no grid."""
    from calibrate.fit import require_fittable

    if given_reach.max_batch_size < 2:
        given_reach = Reach(2, *list(vars(given_reach).values())[1:])
    points = reach_points(given_reach, 0, one_row=one_row, mixes=mixes)
    require_fittable(points)
    grid = [point for point in points if not point.held_out]
    assert len({(point.shape, point.num_repeats) for point in points}) == len(points)
    batches = {point.batch_size for point in grid if point.phase == "decode"}
    slots = given_reach.max_batch_size
    assert {*range(1, min(8, slots) + 1), slots} <= batches and max(batches) == slots
    assert max(point.num_context_tokens for point in grid if point.phase == "decode") == given_reach.max_context
    rows = [point.num_new_tokens for point in grid if point.phase == "prefill"]
    assert max(rows) == max(2, given_reach.max_prefill_tokens) or max(rows) >= given_reach.max_prompt_tokens
    assert all(point.num_decodes < slots for point in grid)
    assert mixes == any(point.phase == "mixed" for point in grid)
    assert all(isinstance(point.row, int | np.integer) and point.row >= 1 for point in points)


def test_one_row_reaches_as_far_as_all_caches_together() -> None:
    """Under one mask a prefill beside seven decodes attends to their caches too."""
    told = Reach(8, 64, 364, 295)
    far, near = (
        max(point.num_context_tokens for point in reach_points(told, 0, one_row=one_row, mixes=True) if point.in_table)
        for one_row in (True, False)
    )
    assert far == pytest.approx(4 * 295) and near == 295
