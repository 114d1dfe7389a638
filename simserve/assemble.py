"""A variant's scenario to the parts that run it: step times, cache and policy, checked against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simserve.errors import ScenarioError
from simserve.kv_cache import Allocator, ContiguousAllocator, PagedAllocator, PrefixCachingAllocator, SwapSpace
from simserve.model_spec import ModelSpec, load_model_spec
from simserve.scenario import (
    ChunkedEngineConfig,
    ContiguousCacheConfig,
    KvCacheConfig,
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
    Pool,
    Scheduler,
    StaticScheduler,
    TransformersScheduler,
)
from simserve.step_time import StepTime
from simserve.step_time.draws import ProfileDraws
from simserve.step_time.hardware import load_hardware
from simserve.step_time.operators import OperatorStepTime, load_operators
from simserve.step_time.profile import ProfileStepTime
from simserve.step_time.profile_schema import load_profile, require_measured_with
from simserve.step_time.roofline import RooflineStepTime, check_fits
from simserve.step_time.stretch import NS_PER_S


@dataclass(frozen=True)
class Parts:
    """What runs one variant; ``swap_bytes_per_s`` is infinite where nothing is swapped."""

    scenario: Scenario
    step_time: StepTime
    scheduler: Scheduler
    swap_bytes_per_s: float


def assemble(scenario: Scenario, calibration_draw: int | None = None) -> Parts:
    """Build a variant's model, step times, cache and policy; raises InputError when they do not fit together.

    ``calibration_draw`` numbers a bootstrap draw of a measured profile, to be used in its place; a roofline has none.
    """
    spec = load_model_spec(scenario.locate(scenario.model))
    step_time, dtype = _build_step_time(scenario, spec, calibration_draw)
    engine, cache = scenario.engine, scenario.engine.kv_cache
    bytes_per_token = spec.kv_bytes_per_token(cache.dtype or dtype)
    if isinstance(engine, TransformersEngineConfig):  # it has a margin of its own
        cache = cache.model_copy(update={"watermark": 0.0})
    allocator = build_allocator(cache, bytes_per_token, engine.max_model_len)
    _check_memory(scenario, spec, allocator.capacity_tokens * bytes_per_token)
    limits = Limits(engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len)
    scheduler = _build_scheduler(scenario, Pool(limits, allocator, engine.queue_order))
    swap = cache.swap if isinstance(cache, PagedCacheConfig) else None
    return Parts(scenario, step_time, scheduler, swap.bandwidth_bytes_per_s if swap else math.inf)


def build_allocator(cache: KvCacheConfig, bytes_per_token: int, max_model_len: int) -> Allocator:
    """The cache of a scenario; whole blocks for either layout. Raises ScenarioError if not one fits."""
    block_bytes = cache.block_size * bytes_per_token
    num_blocks = cache.num_blocks if cache.memory is None else cache.memory // block_bytes
    assert num_blocks is not None, "the scenario gives one of the two"
    if num_blocks < 1:
        raise ScenarioError(
            f"engine.kv_cache.memory: must hold at least one block of {block_bytes} bytes (got {cache.memory})"
        )
    if isinstance(cache, ContiguousCacheConfig):
        return ContiguousAllocator(num_blocks * cache.block_size, cache.reserve, max_model_len)
    if cache.prefix_caching:
        return PrefixCachingAllocator(
            num_blocks,
            cache.block_size,
            max_model_len=max_model_len,
            watermark=cache.watermark,
            null_blocks=cache.null_blocks,
            nameless_first=cache.nameless_first,
        )
    swap = SwapSpace(cache.swap.space // block_bytes, block_bytes) if cache.swap else None
    return PagedAllocator(
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
        return StaticScheduler(pool, None if engine.max_wait_s is None else round(engine.max_wait_s * NS_PER_S))
    if isinstance(engine, ChunkedEngineConfig):
        return ChunkedScheduler(pool, engine.async_scheduling)
    if isinstance(engine, TransformersEngineConfig):
        return TransformersScheduler(pool, engine.safety_margin)
    return ContinuousScheduler(pool)


def _build_step_time(scenario: Scenario, spec: ModelSpec, calibration_draw: int | None) -> tuple[StepTime, str]:
    """The step times, and the dtype in which their cache is kept unless the scenario says otherwise."""
    config = scenario.step_time
    if isinstance(config, ProfileStepTimeConfig):
        profile = load_profile(scenario.locate(config.profile), spec)
        wanted = {"dtype": config.dtype, "tensor_parallel": config.tensor_parallel, "attention": config.attention}
        require_measured_with(profile, wanted, config.profile)
        if calibration_draw is not None:
            profile = ProfileDraws(profile).draw(np.random.default_rng(calibration_draw))
        return ProfileStepTime(profile), profile.provenance.dtype
    if isinstance(config, OperatorsStepTimeConfig):
        tables = load_operators(scenario.base_dir / config.operators, spec, config.tensor_parallel)
        if config.unequal_contexts and tables.skew is None:
            raise ScenarioError(
                f"step_time.unequal_contexts: must be left out or false where {config.operators} has no skew.csv "
                "(got true)"
            )
        unequal = config.unequal_contexts is not False
        step_time = OperatorStepTime(tables, spec, config.tensor_parallel, config.host_overhead_s, unequal)
        return step_time, tables.origin.dtype or "bf16"
    hardware = load_hardware(config.roofline)
    kv_dtype = scenario.engine.kv_cache.dtype
    return RooflineStepTime(spec, hardware, config.tensor_parallel, config.dtype, kv_dtype), config.dtype


def _check_memory(scenario: Scenario, spec: ModelSpec, cache_bytes: int) -> None:
    """On known hardware, weights and cache must fit together."""
    config = scenario.step_time
    if isinstance(config, RooflineStepTimeConfig):
        check_fits(spec, load_hardware(config.roofline), config.tensor_parallel, config.dtype, cache_bytes)
