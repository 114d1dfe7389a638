"""A variant's scenario to the parts that run it: step times, cache and policy, checked against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simserve.errors import ScenarioError
from simserve.kv_cache import Allocator, ContiguousAllocator, PagedAllocator, PrefixCachingAllocator, SwapSpace
from simserve.kv_cache.lookahead import LookaheadAllocator, LookaheadPrefixCachingAllocator
from simserve.scenario import (
    CacheConfig,
    ChunkedEngineConfig,
    ContiguousCacheConfig,
    EngineConfig,
    NoCacheConfig,
    OperatorsStepTimeConfig,
    PagedCacheConfig,
    ProfileStepTimeConfig,
    RooflineStepTimeConfig,
    Scenario,
    StaticEngineConfig,
    TransformersEngineConfig,
)
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
from simserve.simulated_model import SimulatedModel, cache_blocks, simulated_model
from simserve.speculation.build import speculative_scheduler, with_drafts
from simserve.step_time import StepTime
from simserve.step_time.draws import ProfileDraws
from simserve.step_time.hardware import load_hardware
from simserve.step_time.no_cache import without_cache
from simserve.step_time.operators import OperatorStepTime, load_operators
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile, require_measured_with
from simserve.step_time.roofline import RooflineStepTime, check_fits, check_holds
from simserve.step_time.stretch import NS_PER_S


@dataclass(frozen=True)
class Parts:
    """What runs one variant; ``swap_bytes_per_s`` is infinite where nothing is swapped."""

    scenario: Scenario
    model: SimulatedModel
    step_time: StepTime
    scheduler: Scheduler
    swap_bytes_per_s: float


def assemble(scenario: Scenario, calibration_draw: int | None = None) -> Parts:
    """Build a variant's model, step times, cache and policy; raises InputError when they do not fit together.

    ``calibration_draw`` numbers a bootstrap draw of a measured profile, to be used in its place; a roofline has none.
    """
    model = simulated_model(scenario)
    step_time = _build_step_time(scenario, model, calibration_draw)
    engine, cache = scenario.engine, scenario.engine.kv_cache
    limits = Limits(engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len)
    if isinstance(cache, NoCacheConfig):
        _check_memory(scenario, model, 0)
        step_time.source = without_cache(step_time.source, getattr(step_time, "no_cache_table", None))
        return Parts(scenario, model, step_time, _no_cache_scheduler(engine, limits), math.inf)
    if isinstance(engine, TransformersEngineConfig):  # it has a margin of its own
        cache = cache.model_copy(update={"watermark": 0.0})
    speculation = engine.speculation
    allocator = build_allocator(cache, model, engine.max_model_len, looks_ahead=speculation is not None)
    _check_memory(scenario, model, allocator.capacity_tokens)
    if speculation is None:
        scheduler = _build_scheduler(scenario, Pool(limits, allocator, engine.queue_order))
    else:
        scheduler = speculative_scheduler(scenario, speculation, limits, allocator)
        step_time = with_drafts(scenario, speculation, step_time, calibration_draw)
    swap = cache.swap if isinstance(cache, PagedCacheConfig) else None
    return Parts(scenario, model, step_time, scheduler, swap.bandwidth_bytes_per_s if swap else math.inf)


def build_allocator(
    cache: CacheConfig, model: SimulatedModel, max_model_len: int, looks_ahead: bool = False
) -> Allocator:
    """The cache of a scenario; whole blocks for either layout. Raises ScenarioError if not one fits."""
    num_blocks = cache_blocks(cache, model)
    if isinstance(cache, ContiguousCacheConfig):
        return ContiguousAllocator(num_blocks * cache.block_size, cache.reserve, max_model_len)
    if cache.prefix_caching:
        kind = LookaheadPrefixCachingAllocator if looks_ahead else PrefixCachingAllocator
        return kind(
            num_blocks,
            cache.block_size,
            max_model_len=max_model_len,
            watermark=cache.watermark,
            null_blocks=cache.null_blocks,
            nameless_first=cache.nameless_first,
        )
    block_bytes = cache.block_size * model.kv_bytes_per_token
    swap = SwapSpace(cache.swap.space // block_bytes, block_bytes) if cache.swap else None
    return (LookaheadAllocator if looks_ahead else PagedAllocator)(
        num_blocks,
        cache.block_size,
        max_model_len=max_model_len,
        watermark=cache.watermark,
        null_blocks=cache.null_blocks,
        swap=swap,
    )


def _build_scheduler(scenario: Scenario, pool: Pool) -> Scheduler:
    engine = scenario.engine
    if isinstance(engine, StaticEngineConfig):
        return StaticScheduler(pool, _max_wait_ns(engine))
    if isinstance(engine, ChunkedEngineConfig):
        return ChunkedScheduler(pool, engine.async_scheduling)
    if isinstance(engine, TransformersEngineConfig):
        return TransformersScheduler(pool, engine.safety_margin)
    return ContinuousScheduler(pool)


def _no_cache_scheduler(engine: EngineConfig, limits: Limits) -> Scheduler:
    pool = NoCachePool(limits, engine.queue_order)
    if isinstance(engine, StaticEngineConfig):
        return NoCacheStaticScheduler(pool, _max_wait_ns(engine))
    return NoCacheContinuousScheduler(pool)


def _max_wait_ns(engine: StaticEngineConfig) -> int | None:
    return None if engine.max_wait_s is None else round(engine.max_wait_s * NS_PER_S)


def _build_step_time(scenario: Scenario, model: SimulatedModel, calibration_draw: int | None) -> StepTime:
    config, spec = scenario.step_time, model.spec
    if isinstance(config, ProfileStepTimeConfig):
        profile = load_profile(scenario.locate(config.profile), spec)
        wanted = {"dtype": config.dtype, "tensor_parallel": config.tensor_parallel, "attention": config.attention}
        require_measured_with(profile, wanted, config.profile)
        if calibration_draw is not None:
            profile = ProfileDraws(profile).draw(np.random.default_rng(calibration_draw))
        return ProfileStepTime(profile)
    if isinstance(config, OperatorsStepTimeConfig):
        tables = load_operators(scenario.base_dir / config.operators, spec, config.tensor_parallel)
        if config.unequal_contexts and tables.skew is None:
            raise ScenarioError(
                f"step_time.unequal_contexts: must be left out or false where {config.operators} has no skew.csv "
                "(got true)"
            )
        unequal = tables.uses_skew if config.unequal_contexts is None else config.unequal_contexts
        return OperatorStepTime(
            tables, spec, config.tensor_parallel, config.host_overhead_s, unequal, config.max_captured_tokens
        )
    hardware = load_hardware(config.roofline)
    return RooflineStepTime(spec, hardware, config.tensor_parallel, config.dtype, model.kv_dtype, model.weights)


def _check_memory(scenario: Scenario, model: SimulatedModel, capacity_tokens: int) -> None:
    """On known hardware, weights and cache must fit together, a draft's too where its size is known."""
    config, cache, draft = scenario.step_time, scenario.engine.kv_cache, model.draft
    if not isinstance(config, RooflineStepTimeConfig):
        return
    hardware, devices = load_hardware(config.roofline), config.tensor_parallel
    if not isinstance(cache, NoCacheConfig) and cache.holds_weights:
        key = "memory" if cache.memory else "device_memory"
        check_holds(hardware, devices, cache.memory or cache.device_memory or 0, key)
    weights = model.held_weights.name if model.held_weights else config.dtype
    cache_bytes, draft_bytes = capacity_tokens * model.kv_bytes_per_token, 0
    if draft is not None:
        cache_bytes += capacity_tokens * draft.kv_bytes_per_token
        draft_bytes = draft.weight_bytes
    check_fits(model.spec, hardware, devices, weights, cache_bytes, draft_bytes)
