"""What the memory holds: weights, overhead and cache where a variant says how much a device has, and the tokens and the
sequences that fit. Shown where variants differ in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simserve.report.figure import Figure
from simserve.report.part_bars import Bars, Part, bars_figure
from simserve.report.words import count, dig, grouped, number, plural
from simserve.scenario import NoCacheConfig

if TYPE_CHECKING:
    from simserve.simulate import VariantResult

GIB = 1024**3
WEIGHTS = Part("weights", "var(--kv-reserved)")
OVERHEAD = Part("kept for the rest", "var(--kv-external)")
CACHE = Part("cache", "var(--kv-used)")
TOKENS = Part("tokens", "var(--kv-used)")
DRAFT_WEIGHTS, DRAFT_KV = "simulated_model.draft.weight_bytes", "simulated_model.draft.kv_bytes_per_token"
_SAME = 0.01  # a difference that nobody would call one


def room_figures(variants: Mapping[str, VariantResult], summaries: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """A figure of bytes where some variant's weights and cache share a device, and one of tokens where they differ.
    ``summaries`` have each variant's ``simulated_model`` beside its measures."""
    return [*_memory(variants, summaries), *_tokens(summaries)]


def _memory(variants: Mapping[str, VariantResult], summaries: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    sizes, texts = {}, {}
    for name, variant in variants.items():
        cache, summary = variant.scenario.engine.kv_cache, summaries[name]
        if isinstance(cache, NoCacheConfig) or not cache.holds_weights:
            continue
        weights = (dig(summary, "simulated_model.weight_bytes") or 0.0) + (dig(summary, DRAFT_WEIGHTS) or 0.0)
        filled = _cache_bytes(summary)
        rest = max(0.0, (cache.memory or cache.device_memory or 0) - weights - filled)
        sizes[name] = {part.name: each / GIB for part, each in ((WEIGHTS, weights), (OVERHEAD, rest), (CACHE, filled))}
        texts[name] = f"{number(weights / GIB)} GiB of weights leave {number(filled / GIB)} GiB of cache"
    if not sizes:
        return []
    caption = f"{grouped(texts)}; the rest is kept for activations and the like, and what is left of a last block."
    bars = Bars("room-memory", "What the device's memory holds", "GiB", (WEIGHTS, OVERHEAD, CACHE), sizes, caption)
    return [bars_figure(bars)]


def _tokens(summaries: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    held = {name: dig(summary, "kv_cache.capacity_tokens") or 0.0 for name, summary in summaries.items()}
    if max(held.values()) <= (1 + _SAME) * min(held.values()):
        return []
    caption = f"{grouped({name: _words(summary) for name, summary in summaries.items()})}."
    sizes = {name: {TOKENS.name: tokens} for name, tokens in held.items()}
    return [bars_figure(Bars("room-tokens", "Tokens that fit the cache", "tokens", (TOKENS,), sizes, caption))]


def _words(summary: Mapping[str, Any]) -> str:
    """``65,536 tokens at 12,288 bytes each, at most 128 sequences at once``."""
    each, most = _bytes_per_token(summary), dig(summary, "peak_running")
    bytes_each = f" at {count(each)} bytes each" if each else ""
    admitted = f", at most {plural(int(most), 'sequence')} at once" if most is not None else ""
    return f"{count(dig(summary, 'kv_cache.capacity_tokens'))} tokens{bytes_each}{admitted}"


def _cache_bytes(summary: Mapping[str, Any]) -> float:
    return (dig(summary, "kv_cache.capacity_tokens") or 0.0) * _bytes_per_token(summary)


def _bytes_per_token(summary: Mapping[str, Any]) -> float:
    """The model's, and a draft's that is in the same memory."""
    return (dig(summary, "simulated_model.kv_bytes_per_token") or 0.0) + (dig(summary, DRAFT_KV) or 0.0)
