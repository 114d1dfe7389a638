"""What a scenario can ask of an engine at most, from its requests and limits: what is worth timing beforehand."""

from __future__ import annotations

import numpy as np

from simserve.request import RequestTable
from simserve.scenario import KvCacheConfig, NoCacheConfig, Scenario


def reach_of(scenario: Scenario, table: RequestTable) -> dict[str, int]:
    """By the names of ``calibrate.options.Reach``: sequences in a step; tokens of one prefill; tokens of a step, where
    queues are served in order (as many prompts as slots, one behind the other; under static batching padded); cached
    tokens of a sequence; and cached tokens before a prefill, where a prompt can be cut."""
    engine = scenario.engine
    slots, budget = min(engine.max_num_seqs, len(table)), engine.max_num_batched_tokens
    prompts, totals = table.num_prompt_tokens, table.num_prompt_tokens + table.num_output_tokens
    context = min(int(totals.max()), engine.max_model_len)
    longest = context if _may_preempt(engine.kv_cache, slots * context) else min(int(prompts.max()), context)
    together = slots * longest if engine.policy == "static" else _most_together(prompts, slots)
    return {
        "max_batch_size": slots,
        "max_prompt_tokens": min(longest, budget),
        "max_prefill_tokens": max(2, min(together, budget)),
        "max_context": max(2, context),
        "max_chunk_context": longest if longest + slots > budget else 0,
    }


def _may_preempt(cache: KvCacheConfig, num_tokens: int) -> bool:
    """Whether so many tokens may not fit, so that what was computed is computed again, as one long prompt."""
    return (
        isinstance(cache, NoCacheConfig) or cache.num_blocks is None or cache.num_blocks * cache.block_size < num_tokens
    )


def _most_together(prompts: np.typing.NDArray[np.int64], slots: int) -> int:
    """The largest sum of so many neighbours."""
    sums = np.concatenate([[0], np.cumsum(prompts)])
    return int((sums[slots:] - sums[:-slots]).max())
