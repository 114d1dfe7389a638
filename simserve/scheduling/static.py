"""Static (request-level) batching: a group is collected, served to its longest output, and released as one."""

from __future__ import annotations

from simserve.request import Batch, Chunk, Request, Sequence, WaitUntil
from simserve.scheduling.pool import Pool


class StaticScheduler:
    """Prompts are padded to the group's longest; slots and cache of finished members stay held until the group ends.

    A group starts when it is as large as it can be (``max_num_seqs``, or cut by padded tokens or by cache), when no
    arrival can come any more, or when its oldest member has waited ``max_wait_ns`` (None: never for that reason).
    """

    def __init__(self, pool: Pool, max_wait_ns: int | None = None) -> None:
        self.pool = pool
        self._max_wait_ns = max_wait_ns
        self._group: list[Sequence] = []
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
                context = len(self._group) * self._longest_prompt
                self._standing = Batch(num_decodes=len(self._group), decode_context_tokens=context)
            return self._standing
        if not self.pool.waiting:
            return None
        members, is_cut = self._collect()
        deadline_ns = self._deadline_ns(members)
        if not is_cut and more_coming and (deadline_ns is None or now_ns < deadline_ns):
            for seq in members:
                self.pool.waiting.push(seq)
            return None if deadline_ns is None else WaitUntil(deadline_ns)
        return self._start(members)

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
        self.pool.cohort.leave(seq)
        self.pool.allocator.stop_growth(seq)
        self.pool.other_tokens += seq.num_computed_tokens
        if len(self.pool.cohort):
            return []
        delivered, self._group, self._standing = self._group, [], None
        for member in delivered:
            self.pool.release(member)
        self.pool.other_tokens = 0
        return delivered

    def _collect(self) -> tuple[list[Sequence], bool]:
        """The longest prefix of the queue that fits together, taken out, and whether it could not be longer."""
        pool = self.pool
        limits, room = pool.limits, pool.allocator.admissible_tokens()
        members: list[Sequence] = []
        longest = declared = 0
        while pool.waiting and len(members) < limits.max_num_seqs:
            request = pool.waiting.head().request
            longest = max(longest, request.num_prompt_tokens)
            declared += pool.allocator.declared_tokens(request)
            if (len(members) + 1) * longest > limits.max_num_batched_tokens or declared > room:
                return members, True
            members.append(pool.waiting.pop())
        return members, len(members) == limits.max_num_seqs

    def _deadline_ns(self, members: list[Sequence]) -> int | None:
        if self._max_wait_ns is None:
            return None
        return min(seq.request.arrival_ns for seq in members) + self._max_wait_ns

    def _start(self, members: list[Sequence]) -> Batch:
        self._group = members
        self._longest_prompt = max(seq.num_known_tokens for seq in members)
        for seq in members:
            self.pool.allocator.allocate(seq, seq.num_known_tokens)
            self.pool.num_running += 1
        return Batch(
            chunks=(Chunk(self._longest_prompt, 0),) * len(members),
            prefills=tuple((seq, seq.num_known_tokens) for seq in members),
            admitted=tuple(members),
        )
