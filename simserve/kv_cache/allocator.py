"""What a policy may ask of a KV cache, whichever way it lays out memory."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from simserve.request import LookUp, Request, Sequence


class Waste(NamedTuple):
    """Cache held but not filled, in tokens, split as in the PagedAttention paper (Kwon et al., SOSP'23, figure 3)."""

    reserved_unused: int  # promised to a request that will fill it later
    internal: int  # held and never to be filled: over-declared, or the tail of a block


class Allocator(Protocol):
    """One KV cache. Sizes are tokens unless they say blocks.

    A sequence that decodes is *growing*: it needs room for one more token per step, and all growing sequences grow
    together, so their demand over many steps is a closed form.
    """

    capacity_tokens: int
    can_preempt: bool  # a running sequence may have to give its cache back
    shared_tokens: int  # counted twice or more in the sum of what sequences hold: references beyond a block's first
    cached_free_tokens: int  # held by nobody, and a sequence that begins alike would find them
    num_evictions: int  # blocks that were taken while they could be found

    def refusal(self, request: Request) -> str | None:
        """Why this request can never be held, even alone; None if it can."""

    def declared_tokens(self, request: Request) -> int:
        """What the request may take at most by its client's declaration, rounded up to what is really held."""

    def admissible_tokens(self) -> int:
        """The sum of declared sizes that an empty cache takes."""

    def can_admit(self, seq: Sequence, spare_blocks: int = 0) -> bool:
        """Whether all known tokens of a waiting sequence fit now, with ``spare_blocks`` left for others."""

    def num_cached_tokens(self, seq: Sequence) -> int:
        """What a waiting sequence would find of its known tokens: whole blocks from the start, never the last token."""

    def look_up(self, seq: Sequence) -> LookUp | None:
        """What the first admission of a waiting sequence finds, just before it happens; None if nothing ever is."""

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Give the sequence room for ``num_tokens`` in all (the caller has checked that it fits).

        What an admitted sequence has computed before its first room is what it was told that it finds.
        """

    def blocks_to_reach(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks that ``allocate(seq, num_tokens)`` would take from the free ones."""

    def start_growth(self, seq: Sequence, num_tokens: int) -> None:
        """From now on the sequence, with room for ``num_tokens``, grows by one token per ``grow`` step."""

    def stop_growth(self, seq: Sequence) -> None:
        """The sequence stops growing and keeps what it holds."""

    def growth_demand(self, num_steps: int) -> int:
        """Free blocks that all growing sequences take in their next ``num_steps`` steps."""

    def growth_limit(self, max_steps: int) -> int:
        """The largest n ≤ ``max_steps`` with ``growth_demand(n)`` within the free blocks."""

    def grow(self, num_steps: int) -> None:
        """All growing sequences grow by ``num_steps`` tokens."""

    def free(self, seq: Sequence) -> None:
        """Take back everything the sequence holds; what it has computed may be found again."""

    def swap_out(self, seq: Sequence) -> int:
        """Move the sequence's cache out; the bytes moved, or 0 if there is no room for it (nothing happens then)."""

    def swap_in(self, seq: Sequence, num_tokens: int) -> int:
        """Bring a swapped cache back with room for ``num_tokens``; the bytes moved."""

    def drop_swapped(self, seq: Sequence) -> None:
        """Give up a cache that was moved out."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks (contiguous: tokens) that nobody holds."""

    def waste(self, used_tokens: int, coming_tokens: int) -> Waste:
        """Held but not filled, given the tokens that are filled and those that the step under way fills."""

    def unusable_tokens(self, head: Request | None) -> int:
        """External fragmentation: free tokens in holes too small for the request at the head of the queue."""
