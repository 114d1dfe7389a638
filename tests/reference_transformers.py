"""transformers' continuous batching in the slow, obvious engine: one loop over all candidates, as in its source."""

from __future__ import annotations

from tests.reference import Reference
from tests.reference_types import Plan, Seq


class TransformersReference(Reference):
    """Scheduler ``fifo`` of transformers 5.24, over a paged cache without watermark and swap."""

    is_closed = False  # a reset closes the queue until somebody finishes

    def schedule(self) -> Plan | None:
        if not self.running:
            self.is_closed = False
        admitted: list[Seq] = []
        victims: list[Seq] = []
        work, starved = self.pick(admitted)
        while starved and not work:
            victims += self.reset(starved)
            work, starved = self.pick(admitted)
        if starved:
            victims += self.reset(starved)
        return Plan.of(work, admitted, victims, 0)

    def pick(self, admitted: list[Seq]) -> tuple[list[tuple[Seq, int]], list[tuple[Seq, int]]]:
        """Who computes how many tokens in the next step; and who runs and found no room, with what it needed it for."""
        keeps_margin = self.paged.free / self.paged.usable >= self.s.safety_margin
        budget, slots = self.s.max_num_batched_tokens, self.s.max_num_seqs
        work: list[tuple[Seq, int]] = []
        starved: list[tuple[Seq, int]] = []
        candidates = [seq for seq in self.running if not seq.prefilling]
        candidates += [seq for seq in self.running if seq.prefilling]
        candidates += [] if self.is_closed else self.waiting
        for seq in candidates:
            if budget == 0 or slots == 0 or (seq.prefilling and work and not keeps_margin):
                break
            new = min(seq.uncomputed, budget)
            if self.paged.missing(seq, seq.computed + new) > self.paged.free:
                if seq in self.running:
                    starved.append((seq, new))
                continue
            if seq in self.running:
                self.paged.take(seq, seq.computed + new)
            else:
                self.waiting.remove(seq)
                self.waiting.insert(0, seq)
                admitted.append(self.admit(new))
            work.append((seq, new))
            budget, slots = budget - new, slots - 1
        return work, starved

    def reset(self, starved: list[tuple[Seq, int]]) -> list[Seq]:
        """The last starved ones give up their cache until the rest have room; the first of them queues first."""
        victims: list[Seq] = []
        while len(self.running) > 1:
            if sum(self.paged.missing(seq, seq.computed + new) for seq, new in starved) <= self.paged.free:
                break
            victims.append(starved.pop()[0])
            self.running.remove(victims[-1])
            self.preempt(victims[-1])
            self.is_closed = True
        self.waiting[len(self.waiting) - len(victims) :] = reversed(victims)
        return victims

    def deliver(self) -> None:
        if any(seq.is_done and not seq.departed for seq in self.running):
            self.is_closed = False
        super().deliver()
