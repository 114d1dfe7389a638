"""Step counts of real engines on the same 64 requests: scheduling has no tolerance.

Measured on a CPU with transformers 5.24 (continuous batching and static ``generate``) and vLLM 0.32 (v1 scheduler,
prefix caching off), a model of 25 million random weights: ``data/skewed64.json``, everyone at once, 8 slots.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simserve.request import RequestTable
from tests.reference import Reference
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import table_of

AMPLE = Settings("chunked", "paged", 8, 512, 2048, num_blocks=512, block_size=16)
SMALL_VLLM = replace(AMPLE, num_blocks=20, block_size=32, null_blocks=1, max_model_len=320)


@pytest.fixture(scope="module")
def skewed64() -> RequestTable:
    pairs = json.loads((Path(__file__).parent / "data" / "skewed64.json").read_text())["requests"]
    return table_of([0] * len(pairs), *(list(column) for column in zip(*pairs, strict=True)))


def run(table: RequestTable, settings: Settings) -> Reference:
    return Reference(table, settings, ConstantStepTime()).run()


def num_preemptions(reference: Reference) -> int:
    return sum(seq.num_preemptions for seq in reference.seqs)


def test_chunked_takes_the_292_steps_of_transformers_and_vllm(skewed64):
    """Budget 512, ample blocks: 292 steps at mean batch 6.42, and none of them preempts."""
    reference = run(skewed64, AMPLE)
    assert len(reference.steps) == 292
    assert round(sum(step.num_seqs for step in reference.steps) / 292, 2) == 6.42
    assert num_preemptions(reference) == 0


def test_a_budget_of_32_tokens_takes_302_steps(skewed64):
    """transformers continuous batching with ``max_batch_tokens=32``: prompts are cut, 302 steps."""
    assert len(run(skewed64, replace(AMPLE, max_num_batched_tokens=32)).steps) == 302


def test_19_usable_blocks_preempt_as_vllm_does(skewed64):
    """vLLM with 20 blocks of 32 (one is the null block), no watermark: 14 preemptions and 305 steps."""
    reference = run(skewed64, SMALL_VLLM)
    assert (num_preemptions(reference), len(reference.steps)) == (14, 305)


def test_static_takes_the_sum_of_each_groups_longest_answer(skewed64):
    """transformers ``generate`` in groups of 8: 715 steps, 8 prefills (each emits a first token) and 707 decodes."""
    reference = run(skewed64, replace(AMPLE, policy="static"))
    longest = [max(skewed64.num_output_tokens[i : i + 8]) for i in range(0, 64, 8)]
    assert len(reference.steps) == sum(longest) == 715
    assert sum(step.num_prefill_tokens > 0 for step in reference.steps) == 8
    assert all(step.num_seqs == 8 for step in reference.steps)
