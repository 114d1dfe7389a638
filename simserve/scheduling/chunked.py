"""Chunked prefill: decodes and chunks share one token budget per step (Sarathi-Serve, OSDI'24; vLLM v1)."""

from __future__ import annotations

from bisect import bisect_right

from simserve.request import Batch, Chunk, Request, Sequence, WaitUntil
from simserve.scheduling.pool import Pool


class ChunkedScheduler:
    """Running sequences first, in order of admission, then waiting ones, each prefill cut to what the budget leaves.

    A prefill is cut only when it exhausts the budget, so at most one is unfinished and it was admitted last.

    Under ``async_scheduling`` (vLLM's) the next step is decided while one runs. Who has all tokens is known beforehand
    and computes no more, but slot and blocks come back one decision later; a step that could not run anything does not
    run, and then there is nothing to wait for.
    """

    def __init__(self, pool: Pool, async_scheduling: bool = False) -> None:
        self.pool = pool
        self.is_async = async_scheduling
        self._unreported: tuple[list[Sequence], int] = [], 0  # preempted, and bytes moved, when nothing was left to run
        self._partial: Sequence | None = None  # the unfinished prefill
        self._standing: Batch | None = None  # the decision, while it may repeat
        self._queue_was_passed_over = False  # nobody is admitted in a step that preempts

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""
        return self.pool.refusal(request)

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision."""
        pool = self.pool
        if self.is_async:
            pool.release_held(everyone=False)
        victims, moved = self._make_room()
        self._queue_was_passed_over = bool(victims)
        preempted, moved = self._unreported[0] + victims, self._unreported[1] + moved
        prefills: list[tuple[Sequence, int]] = []
        chunk = self._partial_chunk()
        if self._partial is not None and chunk:
            pool.allocator.allocate(self._partial, self._partial.num_computed_tokens + chunk)
            prefills.append((self._partial, chunk))
        pool.allocator.grow(1)
        admitted: list[Sequence] = []
        if pool.waiting and not victims:
            budget = pool.limits.max_num_batched_tokens - pool.cohort.num_step_tokens - chunk
            moved += self._admit(budget, admitted, prefills)
        if not prefills and not len(pool.cohort):
            self._unreported = preempted, moved  # what is held was in the way of the last one that ran
            return None
        self._unreported = [], 0
        standing = self._standing
        if standing is not None and not admitted and not preempted and standing.prefills == tuple(prefills):
            return standing
        self._standing = Batch(
            tuple(Chunk(tokens, seq.num_computed_tokens) for seq, tokens in prefills),
            len(pool.cohort),
            pool.cohort.context_tokens,
            tuple(prefills),
            tuple(admitted),
            tuple(preempted),
            moved,
            pool.cohort.max_context_tokens,
        )
        return self._standing

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """For how many steps, up to ``max_steps``, the decision stands if nothing finishes or arrives."""
        allocator = self.pool.allocator
        if self._queue_was_passed_over or self.pool.num_held:
            return 1
        if not batch.prefills:
            return 1 + allocator.growth_limit(max_steps - 1)
        (seq, chunk), computed = batch.prefills[0], batch.prefills[0][0].num_computed_tokens
        full_chunks = min(max_steps, seq.num_uncomputed_tokens // chunk)
        if len(batch.prefills) > 1 or full_chunks <= 1:
            return 1

        def demand(more: int) -> int:
            return allocator.growth_demand(more) + allocator.blocks_to_reach(seq, computed + (1 + more) * chunk)

        return bisect_right(range(1, full_chunks), allocator.num_free_blocks, key=demand) + 1

    def can_interrupt(self, request: Request) -> bool:
        """Whether this arrival could change the decision: slot and budget are left, and it would head the queue."""
        standing, pool = self._standing, self.pool
        return (
            pool.has_free_slot
            and standing is not None
            and standing.num_batched_tokens < pool.limits.max_num_batched_tokens
            and pool.waiting.would_lead(request)
        )

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out ``num_steps`` times; returns the sequences whose prefill is complete."""
        pool, complete = self.pool, []
        if len(pool.cohort):
            pool.cohort.advance(num_steps)
        pool.allocator.grow(num_steps - 1)
        for seq, tokens in batch.prefills:
            pool.other_tokens += num_steps * tokens
            seq.num_computed_tokens += num_steps * tokens
            pool.allocator.allocate(seq, seq.num_computed_tokens)
            if seq.num_uncomputed_tokens == 0:
                complete.append(seq)
        for seq in complete:
            pool.other_tokens -= seq.num_computed_tokens
            pool.start_decoding(seq)
            self._standing = None
            if seq is self._partial:
                self._partial = None
        return complete

    def finish(self, seq: Sequence) -> list[Sequence]:
        """The sequence has its last token; returns those whose answers are now delivered: itself."""
        self._standing = None
        if self.is_async:
            self.pool.hold(seq)
        else:
            self.pool.cohort.leave(seq)
            self.pool.release(seq)
        return [seq]

    def abort(self, seq: Sequence) -> list[Sequence]:
        """Its client has left: the sequence, waiting or running, is dropped and its blocks are free."""
        if seq in self.pool.waiting:
            self.pool.withdraw(seq)
            return []
        self.pool.stop_computing(seq)
        self.pool.release(seq)
        if seq is self._partial:
            self._partial = None
        self._standing = None
        return [seq]

    def _partial_chunk(self) -> int:
        if self._partial is None:
            return 0
        budget = self.pool.limits.max_num_batched_tokens - self.pool.cohort.num_step_tokens
        return min(self._partial.num_uncomputed_tokens, budget)

    def _make_room(self) -> tuple[list[Sequence], int]:
        """Preempt from the tail until what running sequences need in this step is free."""
        pool, preempted, moved = self.pool, [], 0
        while self._demand() > pool.allocator.num_free_blocks:
            victim = self._partial or pool.cohort.last()
            self._partial = None
            preempted.append(victim)
            moved += pool.preempt(victim)
        return preempted, moved

    def _demand(self) -> int:
        allocator, partial = self.pool.allocator, self._partial
        demand = allocator.growth_demand(1)
        if partial is not None:
            demand += allocator.blocks_to_reach(partial, partial.num_computed_tokens + self._partial_chunk())
        return demand

    def _admit(self, budget: int, admitted: list[Sequence], prefills: list[tuple[Sequence, int]]) -> int:
        """Admit from the queue while slots, ``budget`` and cache last; the bytes swapped in."""
        pool, moved = self.pool, 0
        while pool.waiting and budget > 0 and pool.has_free_slot:
            head = pool.waiting.head()
            if not pool.allocator.can_admit(head):
                break
            if head.is_swapped:
                # Everyone's growth for this step is handed out already; this one's comes with its blocks.
                seq, num_bytes = pool.admit_swapped(head.num_known_tokens)
                moved += num_bytes
                budget -= 1
            else:
                cached = pool.allocator.num_cached_tokens(head)
                chunk = min(head.num_known_tokens - cached, budget)
                seq = pool.admit(chunk, cached)
                prefills.append((seq, chunk))
                budget -= chunk
                if chunk < seq.num_uncomputed_tokens:
                    self._partial = seq
            admitted.append(seq)
        return moved
