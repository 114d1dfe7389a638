"""Three-line set-ups: a table, settings, and ``run_engine(table, settings, step_time)``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from simserve import simulate
from simserve.clients import OPEN_LOOP, ClientPlan
from simserve.engine import EngineOptions
from simserve.kv_cache import Allocator, ContiguousAllocator, PagedAllocator, PrefixCachingAllocator, SwapSpace
from simserve.records import Records
from simserve.request import RequestTable
from simserve.scheduling import (
    ChunkedScheduler,
    ContinuousScheduler,
    Limits,
    NoCacheContinuousScheduler,
    NoCachePool,
    NoCacheStaticScheduler,
    Pool,
    Scheduler,
    StaticScheduler,
    TransformersScheduler,
)
from simserve.speculation.acceptance import Acceptance
from simserve.step_time.stretch import NS_PER_S, StepTime
from tests.reference_types import Settings
from tests.speculation_builders import speculating
from tests.step_times import ConstantStepTime
from tests.strategies import table_of


def skewed64() -> RequestTable:
    """The 64 requests that real engines served, all at once (``data/skewed64.json`` says whose and how)."""
    pairs = json.loads((Path(__file__).parent / "data" / "skewed64.json").read_text())["requests"]
    return table_of([0] * len(pairs), *(list(column) for column in zip(*pairs, strict=True)))


def build_allocator(s: Settings) -> Allocator:
    """The cache that the settings name."""
    if s.allocator == "contiguous":
        return ContiguousAllocator(s.num_blocks * s.block_size, s.reserve, s.max_model_len)
    if s.prefix_caching:
        return PrefixCachingAllocator(
            s.num_blocks,
            s.block_size,
            max_model_len=s.max_model_len,
            watermark=s.watermark,
            null_blocks=s.null_blocks,
            nameless_first=s.nameless_first,
        )
    block_bytes = s.block_size * s.kv_bytes_per_token
    swap = SwapSpace(s.swap_space_bytes // block_bytes, block_bytes) if s.preemption == "swap" else None
    return PagedAllocator(
        s.num_blocks,
        s.block_size,
        max_model_len=s.max_model_len,
        watermark=s.watermark,
        null_blocks=s.null_blocks,
        swap=swap,
    )


def build_scheduler(s: Settings, allocator: Allocator | None = None) -> Scheduler:
    """The policy that the settings name, over its cache."""
    limits = Limits(s.max_num_seqs, s.max_num_batched_tokens, s.max_model_len)
    max_wait_ns = None if s.max_wait_s is None else round(NS_PER_S * s.max_wait_s)
    if s.speculation is not None:
        return speculating(s, Acceptance(*s.speculation))
    if s.allocator == "none":
        no_cache = NoCachePool(limits, s.queue_order)
        return (
            NoCacheStaticScheduler(no_cache, max_wait_ns)
            if s.policy == "static"
            else NoCacheContinuousScheduler(no_cache)
        )
    pool = Pool(limits, allocator or build_allocator(s), s.queue_order)
    if s.policy == "static":
        return StaticScheduler(pool, max_wait_ns)
    if s.policy == "transformers":
        return TransformersScheduler(pool, s.safety_margin)
    return ContinuousScheduler(pool) if s.policy == "continuous" else ChunkedScheduler(pool)


def run_engine(
    table: RequestTable,
    s: Settings,
    step_time: StepTime | None = None,
    fast_forward: bool = True,
    *,
    scheduler: Scheduler | None = None,
    clients: ClientPlan = OPEN_LOOP,
    stop_when: Callable[[int, int, int], bool] | None = None,
) -> Records:
    """Run the real engine to its end, or to where ``stop_when`` ends it; what it recorded."""
    options = EngineOptions(
        fast_forward,
        s.swap_bytes_per_s,
        max_queued_requests=s.max_queued_requests,
        retry_after_ns=s.retry_after_ns,
        stop_when=stop_when,
    )
    return simulate.run_engine(
        table, scheduler or build_scheduler(s), step_time or ConstantStepTime(), options, clients
    )
