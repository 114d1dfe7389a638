"""What transformers' continuous batching decides (5.24, scheduler ``fifo``), read from its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from simserve.kv_cache import PagedAllocator
from simserve.request import Batch, Chunk, Request, Sequence, WaitUntil
from simserve.scheduling.pool import Pool
from simserve.scheduling.tail_queue import TailQueue


@dataclass(slots=True)
class _Changes:
    """What a decision changed among those who run."""

    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    paused: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.admitted or self.preempted or self.paused or self.resumed)


class TransformersScheduler:
    """Decodes first, then unfinished prefills, then the queue, each while budget and blocks last.

    - Whoever finds no block is passed by, and misses the step if it runs: it *starves*, keeps what it holds, and others
      go on, later ones in the queue too. ``max_num_seqs`` counts those who compute in a step; as a prefill that starves
      is reset at once, and a decode starves only when nothing is free, no more than that are ever running.
    - Starved ones are reset, the last first, until the rest find their blocks in the next step: a reset gives up its
      cache and goes to the *end* of the queue, and the queue is closed until somebody finishes.
    - With fewer than ``safety_margin`` of the blocks free as a step is decided, it takes no prefill beside others.
    - A prompt is admitted when its first chunk fits.

    Needs the paged cache without swap, watermark or prefix caching.
    """

    def __init__(self, pool: Pool, safety_margin: float = 0.15) -> None:
        assert isinstance(pool.allocator, PagedAllocator)
        self.pool, self._cache = pool, pool.allocator
        self._queue = pool.waiting = TailQueue()
        self._safety_margin = safety_margin
        self._decoding: dict[int, Sequence] = {}  # in the cohort, or paused
        self._paused: dict[int, Sequence] = {}
        self._partial: dict[int, Sequence] = {}  # unfinished prefills in order of admission
        self._starved: list[tuple[Sequence, int]] = []  # in this decision, with the tokens that found no room
        self._is_closed = False  # the queue, until somebody finishes
        self._changes = _Changes()
        self._standing: Batch | None = None

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""
        return self.pool.refusal(request)

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision."""
        self._changes = _Changes()
        if not self.pool.num_running:
            self._is_closed = False  # its clients left, so nobody will finish and open it
        prefills = self._decide()
        while self._starved and not prefills and not len(self.pool.cohort):
            self._reset_starved()
            prefills = self._decide()
        if self._starved:
            self._reset_starved()
        if not prefills and not len(self.pool.cohort):
            return None
        if self._standing is None or self._changes or self._standing.prefills != tuple(prefills):
            self._standing = self._batch(prefills)
        return self._standing

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """For how many steps, up to ``max_steps``, the decision stands if nothing finishes or arrives: free blocks only
        become fewer, so whom the queue could not send now it cannot send later."""
        if batch.prefills or self._paused or self._partial:
            return 1
        return 1 + self._cache.growth_limit(max_steps - 1)

    def can_interrupt(self, request: Request) -> bool:
        """Whether this arrival could change the decision: the queue is open, and somebody more can compute."""
        cohort, limits = self.pool.cohort, self.pool.limits
        room = min(limits.max_num_seqs, limits.max_num_batched_tokens) - len(cohort)
        return not self._is_closed and room > 0 and (self._keeps_margin() or not len(cohort))

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out ``num_steps`` times; returns the sequences whose prefill is complete."""
        pool, complete = self.pool, []
        if len(pool.cohort):
            pool.cohort.advance(num_steps)
        self._cache.grow(num_steps - 1)
        for seq, tokens in batch.prefills:
            pool.other_tokens += num_steps * tokens
            seq.num_computed_tokens += num_steps * tokens
            if seq.num_uncomputed_tokens == 0:
                complete.append(seq)
        for seq in complete:
            pool.other_tokens -= seq.num_computed_tokens
            pool.start_decoding(seq)
            self._partial.pop(seq.id, None)
            self._decoding[seq.id] = seq
            self._standing = None
        return complete

    def finish(self, seq: Sequence) -> list[Sequence]:
        """The sequence has its last token; returns those whose answers are now delivered: itself."""
        self.pool.cohort.leave(seq)
        self._let_go(seq)
        self._is_closed = False
        return [seq]

    def abort(self, seq: Sequence) -> list[Sequence]:
        """Its client has left: the sequence, waiting or running, is dropped and its blocks are free."""
        if seq in self._queue:
            self.pool.withdraw(seq)
            return []
        self.pool.stop_computing(seq)
        self._let_go(seq)
        return [seq]

    def _let_go(self, seq: Sequence) -> None:
        self.pool.release(seq)
        self._forget(seq)
        self._standing = None

    def _forget(self, seq: Sequence) -> None:
        for members in (self._decoding, self._paused, self._partial):
            members.pop(seq.id, None)

    def _keeps_margin(self) -> bool:
        return self._cache.num_free_blocks / self._cache.num_usable_blocks >= self._safety_margin

    def _decide(self) -> list[tuple[Sequence, int]]:
        """Give blocks to those who compute in the next step; the prefills among them."""
        pool, self._starved = self.pool, []
        takes_prefills = self._keeps_margin()
        self._choose_decodes()
        self._cache.grow(1)
        budget = pool.limits.max_num_batched_tokens - len(pool.cohort)
        slots = pool.limits.max_num_seqs - len(pool.cohort)
        free = self._cache.num_free_blocks
        prefills: list[tuple[Sequence, int]] = []
        for seq in chain(self._partial.values(), () if self._is_closed else self._queue):
            if not (budget and slots and (takes_prefills or not (prefills or len(pool.cohort)))):
                break
            chunk = min(seq.num_uncomputed_tokens, budget)
            needed = self._cache.blocks_to_reach(seq, seq.num_computed_tokens + chunk)
            if needed <= free:
                prefills.append((seq, chunk))
                budget, slots, free = budget - chunk, slots - 1, free - needed
            elif seq.id in self._partial:
                self._starved.append((seq, chunk))
            elif free * self._cache.block_size < min(self._queue.shortest, budget):
                break  # nor will anybody behind it find room
        for seq, chunk in prefills:
            self._place(seq, chunk)
        return prefills

    def _place(self, seq: Sequence, chunk: int) -> None:
        """Give a prefill blocks for its next ``chunk`` tokens; out of the queue, if it stands there."""
        if seq.id in self._partial:
            self._cache.allocate(seq, seq.num_computed_tokens + chunk)
        else:
            self._queue.bring_forward(seq)
            self.pool.admit(chunk)
            self._partial[seq.id] = seq
            self._changes.admitted.append(seq)

    def _choose_decodes(self) -> None:
        """In order of admission, those who find their next block compute; the others are paused."""
        pool = self.pool
        room, free = min(pool.limits.max_num_seqs, pool.limits.max_num_batched_tokens), self._cache.num_free_blocks
        if not self._paused and len(pool.cohort) <= room and self._cache.growth_demand(1) <= free:
            return
        for seq in sorted(self._decoding.values(), key=lambda member: member.admission):
            context = seq.num_computed_tokens + (pool.cohort.clock - seq.joined_clock if seq.joined_clock >= 0 else 0)
            needed = context % self._cache.block_size == 0
            if room and needed <= free:
                room, free = room - 1, free - needed
                self._resume(seq)
            else:
                if room:
                    self._starved.append((seq, 1))
                self._pause(seq)

    def _pause(self, seq: Sequence) -> None:
        if seq.id not in self._paused:
            self.pool.cohort.leave(seq)
            self._cache.stop_growth(seq)
            self.pool.other_tokens += seq.num_computed_tokens
            self._paused[seq.id] = seq
            self._changes.paused.append(seq)

    def _resume(self, seq: Sequence) -> None:
        if self._paused.pop(seq.id, None) is not None:
            self.pool.other_tokens -= seq.num_computed_tokens
            self.pool.cohort.join(seq)
            self._cache.start_growth(seq, seq.num_computed_tokens)
            self._changes.resumed.append(seq)

    def _reset_starved(self) -> None:
        """Reset starved sequences, the last first, until the rest find their blocks; one always goes on running."""
        pool, cache, victims = self.pool, self._cache, list[Sequence]()
        free = cache.num_free_blocks
        needs = [cache.blocks_to_reach(seq, seq.num_computed_tokens + new) for seq, new in self._starved]
        while needs and pool.num_running - len(victims) > 1 and sum(needs) > free:
            needs.pop()
            victims.append(self._starved.pop()[0])
            free += -(-victims[-1].num_computed_tokens // cache.block_size)
        for seq in reversed(victims):
            self._forget(seq)
            pool.preempt(seq)
            self._changes.preempted.append(seq)
            self._is_closed = True
        assert victims or len(pool.cohort) or needs == [], "a request that no cache can hold was not refused"

    def _batch(self, prefills: list[tuple[Sequence, int]]) -> Batch:
        cohort, changes = self.pool.cohort, self._changes
        gone = {seq.id for seq in changes.preempted}
        return Batch(
            tuple(Chunk(tokens, seq.num_computed_tokens) for seq, tokens in prefills),
            len(cohort),
            cohort.context_tokens,
            tuple(prefills),
            tuple(changes.admitted),
            tuple(changes.preempted),
            max_decode_context=cohort.max_context_tokens,
            paused=tuple(seq for seq in changes.paused if seq.id not in gone),
            resumed=tuple(changes.resumed),
        )
