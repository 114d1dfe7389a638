"""Iteration-level batching, prefill first (Orca, Yu et al., OSDI'22; vLLM v0's default scheduler)."""

from __future__ import annotations

from simserve.request import Batch, Chunk, Request, Sequence, WaitUntil
from simserve.scheduling.pool import Pool


class ContinuousScheduler:
    """At every step free slots admit the head of the queue; a step prefills whole prompts or decodes, never both."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._decoding: Batch | None = None  # the decode decision that still stands
        self._freed_after_admission = False  # a preemption made room that the queue has not been offered yet

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""
        return self.pool.unchunked_refusal(request)

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision."""
        admitted, prefills, moved = self._admit() if self.pool.waiting else ([], [], 0)
        if prefills:
            self._decoding = None
            chunks = tuple(Chunk(tokens, seq.num_computed_tokens) for seq, tokens in prefills)
            return Batch(chunks, prefills=tuple(prefills), admitted=tuple(admitted), transfer_bytes=moved)
        return self._decode(admitted, moved)

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """For how many steps, up to ``max_steps``, the decision stands if nothing finishes or arrives."""
        if batch.prefills or self._freed_after_admission:
            return 1
        return 1 + self.pool.allocator.growth_limit(max_steps - 1)

    def can_interrupt(self, request: Request) -> bool:
        """Whether this arrival could change a decode decision: a slot is free and it would head the queue."""
        return self.pool.has_free_slot and self.pool.waiting.would_lead(request)

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out ``num_steps`` times; returns the sequences whose prefill is complete."""
        return self.pool.carry_out_unmixed(batch, num_steps)

    def finish(self, seq: Sequence) -> list[Sequence]:
        """The sequence has its last token; returns those whose answers are now delivered: itself."""
        self.pool.cohort.leave(seq)
        self.pool.release(seq)
        self._decoding = None
        return [seq]

    def abort(self, seq: Sequence) -> list[Sequence]:
        """Its client has left: the sequence, waiting or running, is dropped and its blocks are free."""
        if seq in self.pool.waiting:
            self.pool.withdraw(seq)
            return []
        self.pool.stop_computing(seq)
        self.pool.release(seq)
        self._decoding = None
        return [seq]

    def _admit(self) -> tuple[list[Sequence], list[tuple[Sequence, int]], int]:
        pool, budget, moved = self.pool, self.pool.limits.max_num_batched_tokens, 0
        admitted: list[Sequence] = []
        prefills: list[tuple[Sequence, int]] = []
        while pool.waiting and pool.has_free_slot:
            head = pool.waiting.head()
            if head.is_swapped:
                # It decodes at once, so its next token and everyone's must fit, or it would be preempted again.
                if not pool.allocator.can_admit(head, spare_blocks=pool.allocator.growth_demand(1)):
                    break
                seq, num_bytes = pool.admit_swapped(head.num_computed_tokens)
                moved += num_bytes
            else:
                cached = pool.allocator.num_cached_tokens(head)
                tokens = head.num_known_tokens - cached
                if tokens > budget or not pool.allocator.can_admit(head):
                    break
                budget -= tokens
                seq = pool.admit(tokens, cached)
                prefills.append((seq, tokens))
            admitted.append(seq)
        return admitted, prefills, moved

    def _decode(self, admitted: list[Sequence], moved: int) -> Batch | None:
        pool = self.pool
        preempted: list[Sequence] = []
        while pool.allocator.growth_demand(1) > pool.allocator.num_free_blocks:
            preempted.append(pool.cohort.last())
            moved += pool.preempt(preempted[-1])
        self._freed_after_admission = bool(preempted)
        if not len(pool.cohort):
            return None
        pool.allocator.grow(1)
        if self._decoding is None or admitted or preempted:
            self._decoding = Batch(
                num_decodes=len(pool.cohort),
                decode_context_tokens=pool.cohort.context_tokens,
                admitted=tuple(admitted),
                preempted=tuple(preempted),
                transfer_bytes=moved,
                max_decode_context=pool.cohort.max_context_tokens,
            )
        return self._decoding
