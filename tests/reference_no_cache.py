"""Engines without a KV cache, slow and obvious: every step computes every running sequence from its first token on.

Nothing is kept between steps, so what was computed is thrown away when the next step begins.
"""

from __future__ import annotations

from simserve.request import Batch, Chunk
from tests.reference import Reference
from tests.reference_static import StaticReference
from tests.reference_types import Plan, Seq, Settings, Work


def whole(seqs: list[Seq], rows: list[int], admitted: list[Seq]) -> Plan | None:
    """A step that computes all that each sequence knows, in rows of these lengths."""
    if not rows:
        return None
    for seq in seqs:
        seq.num_recomputed_tokens += seq.computed
        seq.computed = 0
    works = tuple(Work(seq.id, seq.known, 0, seq.prefilling) for seq in seqs)
    batch = Batch(tuple(Chunk(length, 0) for length in rows), recomputes=True)
    return Plan(tuple(seqs), works, batch, tuple(seq.id for seq in admitted))


def longest_row(s: Settings, seq: Seq) -> int:
    """As long as it may get: the last token of an answer is never computed."""
    return s.declared(seq.request) - 1


class NoCacheReference(Reference):
    """The policy ``continuous``: who is admitted must fit beside the others, even if all get as long as they may."""

    filled_tokens = 0

    def same_decision(self, before: Plan, plan: Plan) -> bool:
        """The same sequences, each a token longer, none of them new."""
        return not before.admitted and not plan.admitted and before.seqs == plan.seqs

    def schedule(self) -> Plan | None:
        self.waiting.sort(key=self.queue_key)
        admitted: list[Seq] = []
        while self.waiting and len(self.running) < self.s.max_num_seqs:
            together = [*self.running, self.waiting[0]]
            if sum(longest_row(self.s, seq) for seq in together) > self.s.max_num_batched_tokens:
                break
            admitted.append(self.admit(0))
        return whole(self.running, [seq.known for seq in self.running], admitted)


class NoCacheStaticReference(StaticReference):
    """The policy ``static``: all rows are as long as the longest prompt and grow by one token a step, also those of who
    is done or gone; the group is cut so that its last step fits, if everybody gets as long as he may."""

    filled_tokens = 0

    def largest_step(self, members: list[Seq]) -> int:
        longest = max(seq.request.num_prompt_tokens for seq in members)
        answers = [self.s.declared(seq.request) - seq.request.num_prompt_tokens for seq in members]
        return len(members) * (longest + max(answers) - 1)

    def fits_together(self, members: list[Seq]) -> bool:
        return True

    def start_group(self) -> Plan:
        plan = super().start_group()
        return plan._replace(batch=Batch(plan.batch.chunks, recomputes=True))

    def step_of(self, alive: list[Seq], context: int) -> Plan:
        plan = whole(alive, [context + 1] * len(self.running), [])
        assert plan is not None
        return plan
