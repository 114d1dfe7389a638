"""Policies without a KV cache: every step computes all known tokens of every running sequence again.

What both share:

- A sequence with P prompt tokens computes P + i of them in the step that gives its token number i (from 0), and emits
  one token in every step from the one that admits it on: prefill and decode are the same work. An answer of N tokens
  takes N·P + N·(N − 1)/2 tokens, against P + N − 1 with a cache; the difference counts as recomputed.
- A step that admits somebody is a decision of its own (``Batch.prefills`` are those who are new, the others compute
  beside them, and every chunk is a whole sequence). The decision after it stands, step k of it with k tokens more in
  each row, until somebody is admitted, leaves, or has the last token.
- Room is a slot (``max_num_seqs``) and a place in the largest step to come: a sequence never computes more than
  prompt + declared answer − 1 tokens in a step (the last token is never computed), so those sizes together stay within
  ``max_num_batched_tokens``. No step exceeds it (INV-6), nothing is ever preempted, and a request that is too large
  alone is refused at arrival.
"""

from __future__ import annotations

from simserve.kv_cache.none import NoCache
from simserve.request import Batch, Chunk, Request, Sequence, WaitUntil
from simserve.scheduling.cohort import DecodeCohort
from simserve.scheduling.pool import Limits, Pool
from simserve.scheduling.queue import QueueOrder
from simserve.scheduling.static import StaticScheduler


class RecomputingCohort(DecodeCohort):
    """Running sequences that have their first token. ``context_tokens`` is what the last step computed of them: all
    that they knew before it."""

    def leave(self, seq: Sequence) -> None:
        """Settle the sequence's counters and drop it: computed once are all its tokens but the last, and again
        (``num_recomputed_tokens``) what every step but its first had computed before."""
        super().leave(seq)
        prompt, steps = seq.request.num_prompt_tokens, seq.num_generated_tokens
        seq.num_recomputed_tokens = steps * prompt + steps * (steps - 1) // 2 - seq.num_computed_tokens


class NoCachePool(Pool):
    """Waiting and running sequences of an engine without a cache."""

    def __init__(self, limits: Limits, order: QueueOrder = "fcfs") -> None:
        super().__init__(limits, NoCache(), order)
        self.cohort = RecomputingCohort()

    @property
    def used_tokens(self) -> int:
        """Tokens in the cache: none."""
        return 0

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""
        refusal, limit = super().refusal(request), self.limits.max_num_batched_tokens
        most = largest_step(request, self.limits)
        if refusal is not None or most <= limit:
            return refusal
        return (
            f"prompt + declared maximum - 1 of {most} tokens, computed in one step without a cache, exceed "
            f"max_num_batched_tokens {limit}"
        )


def declared_answer(request: Request, limits: Limits) -> int:
    """The longest answer that there can be: what the client declared, cut by ``max_model_len``."""
    return min(request.max_output_tokens, limits.max_model_len - request.num_prompt_tokens)


def largest_step(request: Request, limits: Limits) -> int:
    """The most tokens that a step may compute for the request."""
    return request.num_prompt_tokens + declared_answer(request, limits) - 1


class NoCacheContinuousScheduler:
    """At every step free slots admit the head of the queue while its largest step fits beside those of the running
    ones; all of them compute in every step, the new ones beside the others."""

    def __init__(self, pool: NoCachePool) -> None:
        self.pool: Pool = pool
        self._room = pool.limits.max_num_batched_tokens  # what is left of a step when everyone is at the largest
        self._standing: Batch | None = None  # the decision, while it may repeat

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""
        return self.pool.refusal(request)

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision."""
        pool, admitted = self.pool, self._admit()
        if self._standing is not None and not admitted:
            return self._standing
        if not admitted and not len(pool.cohort):
            return None
        rows = [pool.cohort.num_computed_tokens(seq) + 1 for seq in pool.cohort]
        rows += [seq.num_known_tokens for seq in admitted]
        self._standing = Batch(
            tuple(Chunk(tokens, 0) for tokens in rows),
            prefills=tuple((seq, seq.num_known_tokens) for seq in admitted),
            admitted=tuple(admitted),
            recomputes=True,
        )
        return self._standing

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """A step that admits is one; after it the same sequences compute on, and nothing runs out."""
        return 1 if batch.prefills else max_steps

    def can_interrupt(self, request: Request) -> bool:
        """Whether this arrival could change the decision: a slot and room are left, and it would head the queue."""
        pool = self.pool
        fits = pool.has_free_slot and largest_step(request, pool.limits) <= self._room
        return fits and pool.waiting.would_lead(request)

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out ``num_steps`` times; returns the sequences that have their first token."""
        pool = self.pool
        pool.cohort.advance(num_steps)
        for seq, tokens in batch.prefills:
            seq.num_computed_tokens = tokens
            pool.start_decoding(seq)
            self._standing = None
        return [seq for seq, _ in batch.prefills]

    def finish(self, seq: Sequence) -> list[Sequence]:
        """The sequence has its last token; returns those whose answers are now delivered: itself."""
        self.pool.cohort.leave(seq)
        self.pool.release(seq)
        self._room += largest_step(seq.request, self.pool.limits)
        self._standing = None
        return [seq]

    def abort(self, seq: Sequence) -> list[Sequence]:
        """Its client has left: the sequence, waiting or running, is dropped."""
        if seq in self.pool.waiting:
            self.pool.withdraw(seq)
            return []
        return self.finish(seq)

    def _admit(self) -> list[Sequence]:
        pool, admitted = self.pool, []
        while pool.waiting and pool.has_free_slot:
            head = pool.waiting.head()
            size = largest_step(head.request, pool.limits)
            if size > self._room:
                break
            self._room -= size
            admitted.append(pool.admit(head.num_known_tokens))
        return admitted


class NoCacheStaticScheduler(StaticScheduler):
    """Static batching without a cache: every row is as long as the longest prompt and grows by a token per step, those
    of finished members too, until the group ends. The group is cut so that its last step fits: so many rows of its
    longest prompt + its longest declared answer − 1."""

    def __init__(self, pool: NoCachePool, max_wait_ns: int | None = None) -> None:
        super().__init__(pool, max_wait_ns)

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""
        return self.pool.refusal(request)

    def _declared_answer(self, request: Request) -> int:
        return declared_answer(request, self.pool.limits)

    def _largest_step(self, num_rows: int, longest_prompt: int, longest_answer: int) -> int:
        return num_rows * (longest_prompt + longest_answer - 1)

    def _prefilling(self) -> Batch:
        members = self._group
        return Batch(
            chunks=(Chunk(self._longest_prompt, 0),) * len(members),
            prefills=tuple((seq, seq.num_known_tokens) for seq in members),
            admitted=tuple(members),
            recomputes=True,
        )

    def _decoding(self) -> Batch:
        return Batch((Chunk(self._longest_prompt + 1, 0),) * len(self._group), recomputes=True)
