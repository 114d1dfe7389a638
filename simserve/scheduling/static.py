"""Static (request-level) batching: a group is collected, served to its longest output, and released as one."""

from __future__ import annotations

from dataclasses import dataclass

from simserve.request import Batch, Chunk, Request, Sequence, WaitUntil
from simserve.scheduling.pool import Pool


@dataclass(slots=True)
class _Totals:
    """Of everyone in the queue; kept while it only grows, so that an arrival costs the same however many wait."""

    num_requests: int = 0
    longest_prompt: int = 0
    longest_answer: int = 0  # as declared
    declared_tokens: int = 0
    oldest_ns: int = 1 << 62


class StaticScheduler:
    """Prompts are padded to the group's longest; slots and cache of finished members stay held until the group ends.

    A group starts when it is as large as it can be (``max_num_seqs``, or cut by padded tokens or by cache), when no
    arrival can come any more, or when its oldest member has waited ``max_wait_ns`` (None: never for that reason).
    """

    def __init__(self, pool: Pool, max_wait_ns: int | None = None) -> None:
        self.pool = pool
        self._max_wait_ns = max_wait_ns
        self._group: list[Sequence] = []
        self._queue = _Totals()
        self._longest_prompt = 0
        self._standing: Batch | None = None

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served; None if it can."""
        limit, room = self.pool.limits.max_num_batched_tokens, self.pool.allocator.admissible_tokens()
        if request.num_prompt_tokens > limit:
            return f"prompt of {request.num_prompt_tokens} tokens exceeds max_num_batched_tokens {limit}"
        declared = self.pool.allocator.declared_tokens(request)
        if declared > room:
            return f"its declared maximum of {declared} tokens exceeds the {room} that the cache admits"
        return self.pool.refusal(request)

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The next step's decision, or when to look again for a group."""
        if self._group:
            self.pool.allocator.grow(1)
            if self._standing is None:
                self._standing = self._decoding()
            return self._standing
        if not self.pool.waiting:
            return None
        if more_coming and self._all_would_fit():
            if self._max_wait_ns is None:
                return None
            deadline_ns = self._queue.oldest_ns + self._max_wait_ns
            if now_ns < deadline_ns:
                return WaitUntil(deadline_ns)
        return self._start(self._collect())

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """A prefill is one step; decodes stand until the group ends."""
        return 1 if batch.prefills else max_steps

    def can_interrupt(self, request: Request) -> bool:
        """A group that runs is never disturbed."""
        return False

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """The decision was carried out ``num_steps`` times; returns the sequences whose prefill is complete."""
        return self.pool.carry_out_unmixed(batch, num_steps)

    def finish(self, seq: Sequence) -> list[Sequence]:
        """The sequence has its last token; the whole group is delivered with the last of them."""
        self._stop(seq)
        return self._end_group()

    def abort(self, seq: Sequence) -> list[Sequence]:
        """Its client has left. Running, it stays as a row that is computed for nobody, as finished members do, and the
        batch no longer waits for it: a batch of tensors cannot let go of a row."""
        pool = self.pool
        if seq in pool.waiting:
            pool.withdraw(seq)
            self._queue = _Totals()
            return []
        if seq.joined_clock >= 0:  # else it was computed, and its answer held back until the batch ends
            self._stop(seq)
        pool.num_running -= 1  # a slot that is held, but no request
        return self._end_group()

    def _stop(self, seq: Sequence) -> None:
        self.pool.cohort.leave(seq)
        self.pool.allocator.stop_growth(seq)
        self.pool.other_tokens += seq.num_computed_tokens

    def _end_group(self) -> list[Sequence]:
        """Release all rows once none of them has anything left to compute."""
        pool = self.pool
        if len(pool.cohort):
            return []
        delivered, self._group, self._standing = self._group, [], None
        for member in delivered:
            pool.allocator.free(member)
            pool.num_running -= not member.has_left
        pool.other_tokens = 0
        return sorted(delivered, key=lambda member: member.id)

    def _all_would_fit(self) -> bool:
        """Whether the whole queue fits together with a slot to spare, so that the group could still grow."""
        pool, queue, limits = self.pool, self._queue, self.pool.limits
        if len(pool.waiting) >= limits.max_num_seqs:
            return False
        for seq in pool.waiting.newest(len(pool.waiting) - queue.num_requests):
            request = seq.request
            queue.num_requests += 1
            queue.longest_prompt = max(queue.longest_prompt, request.num_prompt_tokens)
            queue.longest_answer = max(queue.longest_answer, self._declared_answer(request))
            queue.declared_tokens += pool.allocator.declared_tokens(request)
            queue.oldest_ns = min(queue.oldest_ns, seq.arrival_ns)
        padded = self._largest_step(queue.num_requests, queue.longest_prompt, queue.longest_answer)
        return padded <= limits.max_num_batched_tokens and queue.declared_tokens <= pool.allocator.admissible_tokens()

    def _collect(self) -> list[Sequence]:
        """The longest prefix of the queue that fits together, taken out."""
        pool, limits, room = self.pool, self.pool.limits, self.pool.allocator.admissible_tokens()
        members: list[Sequence] = []
        longest_prompt = longest_answer = 0
        while pool.waiting and len(members) < limits.max_num_seqs:
            request = pool.waiting.head().request
            longest_prompt = max(longest_prompt, request.num_prompt_tokens)
            longest_answer = max(longest_answer, self._declared_answer(request))
            room -= pool.allocator.declared_tokens(request)
            padded = self._largest_step(len(members) + 1, longest_prompt, longest_answer)
            if padded > limits.max_num_batched_tokens or room < 0:
                break
            members.append(pool.waiting.pop())
        self._queue = _Totals()
        return members

    def _start(self, members: list[Sequence]) -> Batch:
        self._group = members
        self._longest_prompt = max(seq.num_known_tokens for seq in members)
        for seq in members:
            self.pool.allocator.allocate(seq, seq.num_known_tokens)
            self.pool.num_running += 1
        return self._prefilling()

    def _declared_answer(self, request: Request) -> int:
        return request.max_output_tokens

    def _largest_step(self, num_rows: int, longest_prompt: int, longest_answer: int) -> int:
        """Tokens of the largest step of a group: its prefill, padded."""
        return num_rows * longest_prompt

    def _prefilling(self) -> Batch:
        """The decision to compute the group's prompts."""
        members = self._group
        return Batch(
            chunks=(Chunk(self._longest_prompt, 0),) * len(members),
            prefills=tuple((seq, seq.num_known_tokens) for seq in members),
            admitted=tuple(members),
        )

    def _decoding(self) -> Batch:
        """The decision that stands from then on."""
        rows, context = len(self._group), self._longest_prompt
        return Batch((), rows, rows * context, max_decode_context=context)
