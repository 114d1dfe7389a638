"""Static batching in the slow, obvious engine: a group is collected, padded, and served until its last member ends."""

from __future__ import annotations

from simserve.request import Batch, Chunk
from simserve.step_time.stretch import NS_PER_S
from tests.reference import Reference
from tests.reference_types import Plan, Seq, Work


class StaticReference(Reference):
    """The policy ``static``; rows of finished members, and of those whose clients left, stay until the group ends."""

    group_longest_prompt = 0
    group_steps = 0

    def same_decision(self, before: Plan, plan: Plan) -> bool:
        return not before.admitted and not plan.admitted

    def next_wake(self) -> int | None:
        times = [super().next_wake(), self.group_deadline() if self.waiting else None]
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def deliver(self) -> None:
        """Answers go when the whole group has ended: who has no answer yet is done, or his client has left."""
        if all(seq.is_done or seq.departed for seq in self.running):
            super().deliver()

    def release_departed(self) -> None:
        self.deliver()  # the group has ended if the last one that had no answer yet has left
        if all(seq.departed for seq in self.running):
            super().release_departed()
        for seq in self.running:
            if seq.departed and not seq.is_done:
                self.slots.idles(seq.id, self.now)

    def schedule(self) -> Plan | None:
        self.waiting.sort(key=self.queue_key)
        if not self.running:
            return self.start_group() if self.group_may_start() else None
        self.group_steps += 1
        alive = [seq for seq in self.running if not seq.is_done and not seq.departed]
        for seq in alive:
            if self.s.allocator == "paged":
                self.paged.take(seq, seq.computed + 1)
        return self.step_of(alive, self.group_longest_prompt + self.group_steps - 1)

    def step_of(self, alive: list[Seq], context: int) -> Plan:
        """Those who lack tokens compute one each; every row is a padded one."""
        works = tuple(Work(seq.id, 1, seq.computed, False) for seq in alive)
        rows = len(self.running)
        return Plan(tuple(alive), works, Batch((), rows, rows * context, max_decode_context=context))

    def group_deadline(self) -> int | None:
        """When the oldest in the queue has waited long enough; nothing if a group waits for ever."""
        if self.s.max_wait_s is None:
            return None
        return min(seq.arrival_ns for seq in self.waiting) + round(NS_PER_S * self.s.max_wait_s)

    def group_may_start(self) -> bool:
        """Some request waits, and the group cannot grow, or nobody can come, or it has waited long enough."""
        if not self.waiting:
            return False
        size = len(self.group())
        if size == self.s.max_num_seqs or size < len(self.waiting) or not self.clients.more_coming:
            return True
        deadline = self.group_deadline()
        return deadline is not None and self.now >= deadline

    def group(self) -> list[Seq]:
        """The longest prefix of the queue that fits one padded prefill and, by declared maxima, the empty cache."""
        for size in range(min(len(self.waiting), self.s.max_num_seqs), 0, -1):
            members = self.waiting[:size]
            if self.largest_step(members) <= self.s.max_num_batched_tokens and self.fits_together(members):
                return members
        raise AssertionError("a request that no group can hold was not rejected")

    def largest_step(self, members: list[Seq]) -> int:
        """The padded prefill."""
        return len(members) * max(seq.request.num_prompt_tokens for seq in members)

    def fits_together(self, members: list[Seq]) -> bool:
        if self.s.allocator == "contiguous":
            return sum(self.s.reservation(seq.request) for seq in members) <= len(self.row.cells)
        blocks = sum(self.paged.num_blocks(self.s.declared(seq.request)) for seq in members)
        return blocks <= self.s.usable_blocks - self.s.watermark_blocks

    def start_group(self) -> Plan:
        members = [self.admit(seq.request.num_prompt_tokens) for seq in self.group()]
        self.group_longest_prompt, self.group_steps = max(seq.request.num_prompt_tokens for seq in members), 0
        works = tuple(Work(seq.id, seq.request.num_prompt_tokens, 0, True) for seq in members)
        batch = Batch(tuple(Chunk(self.group_longest_prompt, 0) for _ in members))
        return Plan(tuple(members), works, batch, tuple(seq.id for seq in members))
