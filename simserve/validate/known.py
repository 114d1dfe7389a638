"""What the prediction was made from, and that none of it came out of the run it is held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simserve.scenario import (
    ChunkedEngineConfig,
    KvCacheConfig,
    NoCacheConfig,
    OperatorsStepTimeConfig,
    PagedCacheConfig,
    Scenario,
)
from simserve.step_time.source import StepTimeSource


def known_beforehand(scenario: Scenario, source: StepTimeSource, requests: Sequence[str]) -> list[str]:
    """A sentence for each input: step times and their own error, requests, engine, and what was assumed."""
    return [*_step_times(source), *requests, _engine(scenario), *_assumptions(scenario)]


def _step_times(source: StepTimeSource) -> Iterator[str]:
    error = source.holdout_mape
    held_out = f"held-out error {error:.1%}" if error is not None else "held-out error not known"
    kind = "measured" if source.calibrated else "estimated, not measured"
    yield f"step times: {source.name} on {source.device} ({kind}, {held_out})"
    if source.note:
        yield f"of these step times: {source.note}"


def _engine(scenario: Scenario) -> str:
    engine, cache = scenario.engine, scenario.engine.kv_cache
    words = (
        f"{engine.policy} policy",
        f"max_num_seqs {engine.max_num_seqs:,}",
        f"max_num_batched_tokens {engine.max_num_batched_tokens:,}",
        f"max_model_len {engine.max_model_len:,}",
        _cache(cache),
    )
    return f"engine, by the scenario: {', '.join(words)}"


def _cache(cache: KvCacheConfig) -> str:
    """The cache and its size, as the scenario gives it."""
    if isinstance(cache, NoCacheConfig):
        return "no cache"
    if cache.num_blocks is not None:
        capacity = f"{cache.num_blocks:,} blocks"
    elif not cache.holds_weights:
        capacity = f"{cache.memory:,} bytes, in blocks"
    else:
        capacity = f"what weights and overhead leave of {cache.memory or cache.device_memory:,} bytes, in blocks"
    return f"{cache.allocator} cache of {capacity} with {cache.block_size} tokens each"


def _assumptions(scenario: Scenario) -> Iterator[str]:
    """What no file of the run or of the step times says, and the scenario declares."""
    cache, step_time = scenario.engine.kv_cache, scenario.step_time
    if scenario.weights is not None:
        yield f"declared: weights in {scenario.weights}"
    if scenario.attention is not None:
        shape = scenario.attention
        yield f"declared: attention with {shape if isinstance(shape, str) else f'{shape.kv_heads} KV heads'}"
    if isinstance(cache, PagedCacheConfig):
        prefix = "on" if cache.prefix_caching else "off"
        yield (
            f"declared: watermark {cache.watermark:g}, {cache.null_blocks} null blocks, preemption by "
            f"{cache.preemption}, prefix caching {prefix}"
        )
    if isinstance(scenario.engine, ChunkedEngineConfig):
        yield f"declared: asynchronous scheduling {'on' if scenario.engine.async_scheduling else 'off'}"
    if isinstance(step_time, OperatorsStepTimeConfig):
        yield f"declared: {1e3 * step_time.host_overhead_s:g} ms of the engine's own work per step"
        if step_time.max_captured_tokens is not None:
            yield f"declared: steps of up to {step_time.max_captured_tokens} tokens padded to captured sizes"
