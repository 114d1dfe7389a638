"""Speculative decoding in the slow, obvious engine: pass by pass, draft by draft, block by block.

It shares with the real engine, on purpose, who is right (``uniform``), which has tests of its own.
"""

from __future__ import annotations

from simserve.clients.plan import OPEN_LOOP, ClientPlan
from simserve.request import RequestTable
from simserve.speculation.acceptance import uniform
from simserve.step_time.stretch import StepTime
from tests.reference import Reference
from tests.reference_types import Plan, Seq, Settings, Work


class SpeculativeReference(Reference):
    """Policies ``continuous`` and ``chunked``: who decodes computes its last token and all drafts in a step, keeps the
    leading ones that are right and one more, and gives the room of the others back."""

    def __init__(
        self, table: RequestTable, settings: Settings, step_time: StepTime, clients: ClientPlan = OPEN_LOOP
    ) -> None:
        super().__init__(table, settings, step_time, clients)
        assert settings.speculation is not None
        self.drafts = settings.speculation
        self.decode_tokens = 1 + self.drafts.num_drafts

    def same_decision(self, before: Plan, plan: Plan) -> bool:
        """Nobody knows before a pass how it ends, so none is like another."""
        return False

    def room(self, seq: Seq, num_new: int) -> int:
        """Drafts beyond what the client declared, or the model takes, are written nowhere."""
        return min(seq.computed + num_new, self.s.declared(seq.request))

    def carry_out(self, seq: Seq, work: Work) -> None:
        if work.is_prefill:
            super().carry_out(seq, work)
            return
        num_right = 0
        for i, likelihood in enumerate(self.drafts.acceptance):
            if uniform(self.drafts.seed, seq.id, seq.generated + i) >= likelihood:
                break
            num_right += 1
        num_kept = min(num_right + 1, seq.request.num_output_tokens - seq.generated)
        for _ in range(num_kept):
            seq.computed += 1
            self.emit(seq)
        seq.num_passes += 1
        seq.num_accepted_tokens += num_right
        seq.num_rejected_tokens += work.num_new - num_kept

    def end_step(self) -> None:
        for seq in self.running:
            if not seq.prefilling and self.s.allocator == "paged":
                self.paged.shrink(seq, seq.computed)
        super().end_step()
