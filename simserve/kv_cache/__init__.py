"""Allocators of the KV cache: contiguous address ranges, or paged blocks."""

from simserve.kv_cache.allocator import Allocator, Waste
from simserve.kv_cache.contiguous import ContiguousAllocator
from simserve.kv_cache.none import NoCache
from simserve.kv_cache.paged import PagedAllocator, SwapSpace
from simserve.kv_cache.prefix_caching import PrefixCachingAllocator

__all__ = [
    "Allocator",
    "ContiguousAllocator",
    "NoCache",
    "PagedAllocator",
    "PrefixCachingAllocator",
    "SwapSpace",
    "Waste",
]
