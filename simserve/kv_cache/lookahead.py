"""Paged caches of an engine that verifies drafts: room for several tokens before a step, blocks given back after it.

``speculation`` says what a pass is. vLLM keeps the blocks of rejected tokens in the request's table; here they are free
at the end of the step.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

from simserve.kv_cache.paged import PagedAllocator
from simserve.kv_cache.prefix_caching import PrefixCachingAllocator
from simserve.request import Request, Sequence


class Lookahead(NamedTuple):
    """What a pass computes per sequence, ``num_tokens`` of them, in a model that takes ``max_model_len`` tokens."""

    num_tokens: int
    max_model_len: int

    def limit(self, request: Request) -> int:
        """The longest that the sequence can get as far as anybody knows: no room is kept for tokens beyond it."""
        return min(request.num_prompt_tokens + request.max_output_tokens, self.max_model_len)

    def room(self, seq: Sequence) -> int:
        """Tokens for which a sequence needs room before a pass."""
        return min(seq.num_computed_tokens + self.num_tokens, self.limit(seq.request))


class LookaheadAllocator(PagedAllocator):
    """A paged cache whose growing sequences look ahead by as many tokens as a pass computes, one pass at a time.

    They do not grow alike, so what they need is counted one by one, from what each has computed (which the cohort
    keeps up to date). Between two passes nobody holds more than that.
    """

    lookahead: Lookahead

    def look_ahead(self, lookahead: Lookahead) -> None:
        """Say how far, before anything is held."""
        self.lookahead = lookahead
        self._growing: dict[int, tuple[Sequence, MutableSequence[int], int]] = {}  # its table, and its limit

    def refusal(self, request: Request) -> str | None:
        """Why this request can never be held, even alone, with what its last pass looks ahead."""
        refusal = super().refusal(request)
        num_drafts = self.lookahead.num_tokens - 1
        tokens = min(request.num_total_tokens + num_drafts, self.lookahead.limit(request))
        need = self._blocks(tokens) + self.watermark_blocks
        if refusal is not None or need <= self.num_usable_blocks:
            return refusal
        return (
            f"prompt + output of {request.num_total_tokens} tokens and {num_drafts} drafts need {need} blocks of "
            f"{self.block_size} (watermark included) and the cache has {self.num_usable_blocks}"
        )

    def start_growth(self, seq: Sequence, num_tokens: int) -> None:
        """The sequence joins the growing ones."""
        self._growing[seq.id] = seq, self._tables[seq.id], self.lookahead.limit(seq.request)

    def stop_growth(self, seq: Sequence) -> None:
        """The sequence leaves the growing ones and keeps what it holds."""
        del self._growing[seq.id]

    def growth_demand(self, num_steps: int) -> int:
        """Free blocks that all growing sequences take before their next pass; no further pass can be told."""
        demand, size, num_tokens = 0, self.block_size, self.lookahead.num_tokens
        if num_steps:
            for seq, table, limit in self._growing.values():
                demand += max(0, -(-min(seq.num_computed_tokens + num_tokens, limit) // size) - len(table))
        return demand

    def growth_limit(self, max_steps: int) -> int:
        """None: what a second pass needs depends on what the first one accepts."""
        return 0

    def grow(self, num_steps: int) -> None:
        """Hand out the blocks for the next pass."""
        if num_steps:
            size, num_tokens = self.block_size, self.lookahead.num_tokens
            for seq, table, limit in self._growing.values():
                room = min(seq.num_computed_tokens + num_tokens, limit)
                if room > size * len(table):
                    self.allocate(seq, room)

    def roll_back(self) -> None:
        """A pass is over: growing sequences give back the blocks beyond what they have computed."""
        size = self.block_size
        for seq, table, _ in self._growing.values():
            if seq.num_computed_tokens <= size * (len(table) - 1):
                self.shrink(seq, seq.num_computed_tokens)

    def free(self, seq: Sequence) -> None:
        """Take back everything the sequence holds; what it has computed may be found again."""
        self._growing.pop(seq.id, None)
        super().free(seq)


class LookaheadPrefixCachingAllocator(LookaheadAllocator, PrefixCachingAllocator):
    """The same with blocks that are found again; those of rejected tokens never are, as only full blocks of computed
    tokens have an identity."""
