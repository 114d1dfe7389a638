"""The policies with speculation: they decide as they do without it, over sequences that look ahead."""

from __future__ import annotations

from dataclasses import replace

from simserve.kv_cache import Allocator
from simserve.kv_cache.lookahead import Lookahead, LookaheadAllocator
from simserve.request import Batch, Sequence, WaitUntil
from simserve.scheduling import ChunkedScheduler, ContinuousScheduler, Limits, Pool
from simserve.scheduling.queue import QueueOrder
from simserve.speculation.acceptance import Acceptance
from simserve.speculation.cohort import DraftingCohort


class DraftingPool(Pool):
    """Waiting and running sequences of an engine that speculates. A paged cache is told how far to look ahead; in a
    contiguous one whatever an answer can still reach is inside its range."""

    cohort: DraftingCohort

    def __init__(
        self, limits: Limits, allocator: Allocator, acceptance: Acceptance, order: QueueOrder = "fcfs"
    ) -> None:
        super().__init__(limits, allocator, order)
        lookahead = Lookahead(1 + acceptance.num_drafts, limits.max_model_len)
        self.cohort = DraftingCohort(acceptance, lookahead)
        self._paged = allocator if isinstance(allocator, LookaheadAllocator) else None
        if self._paged is not None:
            self._paged.look_ahead(lookahead)

    def verifying(self, decision: Batch | WaitUntil | None) -> Batch | WaitUntil | None:
        """The decision as one in which every decode verifies drafts: an object of its own at every step."""
        if not isinstance(decision, Batch):
            return decision
        return replace(decision, tokens_per_decode=1 + self.cohort.num_drafts)

    def roll_back(self, batch: Batch) -> None:
        """What a pass computed and nobody accepted is out of the cache."""
        if batch.num_decodes and self._paged is not None:
            self._paged.roll_back()


class SpeculativeContinuousScheduler(ContinuousScheduler):
    """Prefill first, and otherwise a pass for all that decode."""

    def __init__(self, pool: DraftingPool) -> None:
        super().__init__(pool)
        self._drafting = pool

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision."""
        return self._drafting.verifying(super().schedule(now_ns, more_coming))

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """One: who accepts what differs from pass to pass."""
        return 1

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out; returns the sequences whose prefill is complete."""
        complete = super().finish_step(batch, num_steps)
        self._drafting.roll_back(batch)
        self._decoding = None
        return complete


class SpeculativeChunkedScheduler(ChunkedScheduler):
    """One token budget for passes and chunks: a pass takes γ + 1 of it per decode."""

    def __init__(self, pool: DraftingPool) -> None:
        super().__init__(pool)
        self._drafting = pool

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision."""
        return self._drafting.verifying(super().schedule(now_ns, more_coming))

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """One: who accepts what differs from pass to pass."""
        return 1

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out; returns the sequences whose prefill is complete."""
        complete = super().finish_step(batch, num_steps)
        self._drafting.roll_back(batch)
        self._standing = None
        return complete
