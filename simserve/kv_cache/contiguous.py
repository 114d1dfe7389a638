"""Contiguous KV cache: one address range per request, first fit (servers before paging: Orca, FasterTransformer)."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from simserve.kv_cache.allocator import Waste
from simserve.request import LookUp, Request, Sequence

Reserve = Literal["max_model_len", "max_tokens", "oracle"]


class ContiguousAllocator:
    """``capacity_tokens`` addresses; each request reserves one range for life, sized before its output is known.

    ``reserve`` says how: the model's limit, what the client declared, or (oracle) its true length. The free list is the
    real address map, so external fragmentation happens instead of being assumed.
    """

    can_preempt = False
    shared_tokens = 0
    cached_free_tokens = 0
    num_evictions = 0

    def __init__(self, capacity_tokens: int, reserve: Reserve, max_model_len: int) -> None:
        self.capacity_tokens = capacity_tokens
        self._reserve = reserve
        self._max_model_len = max_model_len
        self._hole_starts = [0]
        self._hole_sizes = [capacity_tokens]
        self._ranges: dict[int, tuple[int, int]] = {}
        self._reserved_tokens = 0
        self._final_tokens = 0  # Σ true lengths of the holders; read for the waste figures only
        self._final_of: dict[int, int] = {}

    @property
    def num_free_blocks(self) -> int:
        """Free tokens: an address is a block of one."""
        return self.capacity_tokens - self._reserved_tokens

    def range_of(self, seq: Sequence) -> tuple[int, int] | None:
        """(first address, size) that a sequence holds."""
        return self._ranges.get(seq.id)

    def holes(self) -> list[tuple[int, int]]:
        """Free ranges in address order, as (first address, size)."""
        return list(zip(self._hole_starts, self._hole_sizes, strict=True))

    def refusal(self, request: Request) -> str | None:
        """Why this request can never be held, even alone."""
        need = self.declared_tokens(request)
        if need <= self.capacity_tokens:
            return None
        return f"it reserves {need} tokens ({self._reserve}) and the cache has {self.capacity_tokens}"

    def declared_tokens(self, request: Request) -> int:
        """The size of the range that the request will reserve."""
        if self._reserve == "max_model_len":
            return self._max_model_len
        if self._reserve == "max_tokens":
            return min(request.num_prompt_tokens + request.max_output_tokens, self._max_model_len)
        return request.num_total_tokens

    def admissible_tokens(self) -> int:
        """The whole cache."""
        return self.capacity_tokens

    def can_admit(self, seq: Sequence, spare_blocks: int = 0) -> bool:
        """Whether some hole is large enough for the reservation."""
        need = self.declared_tokens(seq.request)
        return any(size >= need for size in self._hole_sizes)

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Nothing is found: a range that is given back is empty."""
        return 0

    def look_up(self, seq: Sequence) -> LookUp | None:
        """There is nothing to look for."""
        return None

    def blocks_to_reach(self, seq: Sequence, num_tokens: int) -> int:
        """Nothing once admitted: the range was reserved for the whole life."""
        return 0

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Reserve the first hole that fits; later calls change nothing."""
        if seq.id in self._ranges:
            return
        need = self.declared_tokens(seq.request)
        i = next(i for i, size in enumerate(self._hole_sizes) if size >= need)
        self._ranges[seq.id] = (self._hole_starts[i], need)
        self._reserved_tokens += need
        self._final_of[seq.id] = seq.request.num_total_tokens
        self._final_tokens += seq.request.num_total_tokens
        if self._hole_sizes[i] == need:
            del self._hole_starts[i], self._hole_sizes[i]
        else:
            self._hole_starts[i] += need
            self._hole_sizes[i] -= need

    def start_growth(self, seq: Sequence, num_tokens: int) -> None:
        """Growth happens inside the reservation."""

    def stop_growth(self, seq: Sequence) -> None:
        """Growth happens inside the reservation."""

    def growth_demand(self, num_steps: int) -> int:
        """Nothing beyond the reservation."""
        return 0

    def growth_limit(self, max_steps: int) -> int:
        """Never bound by memory."""
        return max_steps

    def grow(self, num_steps: int) -> None:
        """Growth happens inside the reservation."""

    def free(self, seq: Sequence) -> None:
        """Return the range and merge it with its free neighbours."""
        start, size = self._ranges.pop(seq.id)
        self._reserved_tokens -= size
        self._final_tokens -= self._final_of.pop(seq.id)
        i = bisect_left(self._hole_starts, start)
        if i < len(self._hole_starts) and start + size == self._hole_starts[i]:
            size += self._hole_sizes[i]
            del self._hole_starts[i], self._hole_sizes[i]
        if i > 0 and self._hole_starts[i - 1] + self._hole_sizes[i - 1] == start:
            self._hole_sizes[i - 1] += size
        else:
            self._hole_starts.insert(i, start)
            self._hole_sizes.insert(i, size)

    def swap_out(self, seq: Sequence) -> int:
        """Ranges are never swapped."""
        return 0

    def swap_in(self, seq: Sequence, num_tokens: int) -> int:
        """Ranges are never swapped."""
        return 0

    def drop_swapped(self, seq: Sequence) -> None:
        """Ranges are never swapped."""

    def waste(self, used_tokens: int, coming_tokens: int) -> Waste:
        """Reserved for tokens still to come, in this step or later, and reserved beyond the true length."""
        return Waste(self._final_tokens - used_tokens, self._reserved_tokens - self._final_tokens)

    def unusable_tokens(self, head: Request | None) -> int:
        """Free tokens in holes smaller than the head of the queue needs; 0 when nobody waits."""
        if head is None:
            return 0
        need = self.declared_tokens(head)
        return sum(size for size in self._hole_sizes if size < need)
