"""No KV cache at all: nothing is kept between steps, so there is nothing to run out of."""

from __future__ import annotations

from simserve.kv_cache.allocator import Waste
from simserve.request import LookUp, Request, Sequence


class NoCache:
    """An ``Allocator`` that holds nothing, has no blocks, and refuses nobody.

    What a sequence may take is the policy's business then (``scheduling.no_cache``): every step computes all its known
    tokens, so room is room in a step.
    """

    capacity_tokens = 0
    can_preempt = False
    shared_tokens = 0
    cached_free_tokens = 0
    num_evictions = 0
    num_free_blocks = 0

    def refusal(self, request: Request) -> str | None:
        """Nobody is refused for want of cache."""
        return None

    def declared_tokens(self, request: Request) -> int:
        """A request takes nothing."""
        return 0

    def admissible_tokens(self) -> int:
        """The sum of sizes that fits: of requests that take nothing, any number does."""
        return 0

    def can_admit(self, seq: Sequence, spare_blocks: int = 0) -> bool:
        """Always."""
        return True

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Nothing is ever found."""
        return 0

    def look_up(self, seq: Sequence) -> LookUp | None:
        """There is nothing to look for."""
        return None

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Nothing is held."""

    def blocks_to_reach(self, seq: Sequence, num_tokens: int) -> int:
        """No blocks."""
        return 0

    def start_growth(self, seq: Sequence, num_tokens: int) -> None:
        """Nothing grows."""

    def stop_growth(self, seq: Sequence) -> None:
        """Nothing grew."""

    def growth_demand(self, num_steps: int) -> int:
        """No blocks."""
        return 0

    def growth_limit(self, max_steps: int) -> int:
        """Nothing runs out."""
        return max_steps

    def grow(self, num_steps: int) -> None:
        """Nothing grows."""

    def free(self, seq: Sequence) -> None:
        """Nothing was held."""

    def swap_out(self, seq: Sequence) -> int:
        """Nothing to move."""
        return 0

    def swap_in(self, seq: Sequence, num_tokens: int) -> int:
        """Nothing to move."""
        return 0

    def drop_swapped(self, seq: Sequence) -> None:
        """Nothing was moved."""

    def waste(self, used_tokens: int, coming_tokens: int) -> Waste:
        """Nothing is held, so nothing of it is empty."""
        return Waste(0, 0)

    def unusable_tokens(self, head: Request | None) -> int:
        """Nothing is free either."""
        return 0
