"""Step counts of real engines on the same 64 requests: scheduling has no tolerance.

Measured on a CPU with transformers 5.24 (continuous batching and static ``generate``) and vLLM 0.32 (v1 scheduler,
prefix caching off), a model of 25 million random weights: ``data/skewed64.json``, everyone at once, 8 slots.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simserve.records import Records
from simserve.request import RequestTable
from tests.builders import run_engine, skewed64
from tests.reference import Reference
from tests.reference_types import Settings
from tests.references import run_reference
from tests.step_times import ConstantStepTime
from tests.strategies import Case

AMPLE = Settings("chunked", "paged", 8, 512, 2048, num_blocks=512, block_size=16)
SMALL_VLLM = replace(AMPLE, num_blocks=20, block_size=32, null_blocks=1, max_model_len=320)


@pytest.fixture(scope="module")
def table() -> RequestTable:
    return skewed64()


def run_both(table: RequestTable, settings: Settings) -> tuple[Reference, Records]:
    """The reference engine and the real one; they must agree on the number of steps."""
    reference = run_reference(Case(table, settings, ConstantStepTime()))
    records = run_engine(table, settings, ConstantStepTime())
    assert records.num_steps == len(reference.steps)
    assert records.num_preemptions == sum(seq.num_preemptions for seq in reference.seqs)
    return reference, records


def test_chunked_takes_the_292_steps_of_transformers_and_vllm(table):
    """Budget 512, ample blocks: 292 steps at mean batch 6.42, and none of them preempts."""
    reference, records = run_both(table, AMPLE)
    assert records.num_steps == 292
    assert round(sum(step.num_seqs for step in reference.steps) / 292, 2) == 6.42
    assert records.num_preemptions == 0


def test_a_budget_of_32_tokens_takes_302_steps(table):
    """transformers continuous batching with ``max_batch_tokens=32``: prompts are cut, 302 steps."""
    _, records = run_both(table, replace(AMPLE, max_num_batched_tokens=32))
    assert records.num_steps == 302


def test_19_usable_blocks_preempt_as_vllm_does(table):
    """vLLM with 20 blocks of 32 (one is the null block), no watermark: 14 preemptions and 305 steps."""
    _, records = run_both(table, SMALL_VLLM)
    assert (records.num_preemptions, records.num_steps) == (14, 305)


def test_static_takes_the_sum_of_each_groups_longest_answer(table):
    """transformers ``generate`` in groups of 8: 715 steps, 8 prefills (each emits a first token) and 707 decodes."""
    reference, records = run_both(table, replace(AMPLE, policy="static"))
    longest = [max(table.num_output_tokens[i : i + 8]) for i in range(0, 64, 8)]
    assert records.num_steps == sum(longest) == 715
    assert sum(step.num_prefill_tokens > 0 for step in reference.steps) == 8
    assert all(step.num_seqs == 8 for step in reference.steps)
