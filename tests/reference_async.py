"""Asynchronous scheduling in the slow, obvious engine: each step is decided at the begin of the one before it."""

from __future__ import annotations

from dataclasses import replace

from tests.reference import Reference
from tests.reference_types import Plan, Seq


class AsyncReference(Reference):
    """vLLM's engine core with a batch queue of two (``step_with_batch_queue``), for clients that stay.

    At the end of a step, its answers are out, and the step after the next is decided. The next one, decided when this
    one began, knew of no answer and no arrival since; who would have nothing left to compute was left out of it. So
    slots and blocks of those who are answered come back one decision late. If there was nothing to decide on then, the
    decision is made when there is.
    """

    held: list[Seq]  # answered by the step that has just ended
    held_longer: list[Seq]  # answered by the one before it
    victims: list[tuple[Seq, int]]  # preempted, and the bytes swapped, since the last step

    def run(self) -> Reference:
        self.held, self.held_longer, self.victims = [], [], []
        return super().run()

    def decide(self, previous: Plan | None) -> Plan | None:
        known_ns = self.steps[-1].begin_ns if previous is not None else self.now
        self.let_happen(known_ns - 1)
        self.complete(previous)
        self.let_happen(known_ns)
        self.let_go(self.held_longer)
        plan = self.schedule()
        if plan is None:
            self.let_go(self.held)
            self.let_happen(self.now)
            plan = self.schedule()
        self.held, self.held_longer = [], self.held
        return plan

    def schedule(self) -> Plan | None:
        moved = sum(num_bytes for _, num_bytes in self.victims)
        plan = super().schedule()
        if plan is None:
            return None
        preempted, self.victims = tuple(seq.id for seq, _ in self.victims), []
        batch = replace(plan.batch, transfer_bytes=plan.batch.transfer_bytes + moved)
        return plan._replace(preempted=preempted, batch=batch)

    @property
    def holders(self) -> list[Seq]:
        return [*self.held_longer, *self.held, *self.running]

    def release(self, seq: Seq) -> None:
        self.held.append(seq)

    def let_go(self, seqs: list[Seq]) -> None:
        for seq in seqs:
            super().release(seq)
        seqs.clear()

    def admissible(self, seq: Seq, spare_blocks: int = 0) -> bool:
        has_slot = len(self.holders) < self.s.max_num_seqs
        return has_slot and super().admissible(seq, spare_blocks)

    def preempt(self, seq: Seq) -> int:
        num_bytes = super().preempt(seq)
        self.victims.append((seq, num_bytes))
        return num_bytes
