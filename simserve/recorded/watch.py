"""A simulated run as the same step records that a real engine leaves: a policy under observation."""

from __future__ import annotations

from simserve.recorded.steps import Decode, Prefill, Stamp, StepRecord
from simserve.request import Batch, Request, Sequence, WaitUntil
from simserve.scheduling import Scheduler


class StepWatcher:
    """Decides as the policy inside does, and keeps each step as a record in ``steps``.

    Run it with fast-forward off: a decision that stands for many steps would be one record. ``begin`` is when a step
    was decided, on the simulated clock; its end is not known yet then, and stays 0.
    """

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner
        self.pool = inner.pool
        self.steps: list[StepRecord] = []
        self._decoding: dict[int, Sequence] = {}
        self._last: Batch | None = None

    def refusal(self, request: Request) -> str | None:
        """As the policy says."""
        return self._inner.refusal(request)

    def schedule(self, now_ns: int, more_coming: bool) -> Batch | WaitUntil | None:
        """The policy's decision, written down."""
        decision = self._inner.schedule(now_ns, more_coming)
        if isinstance(decision, Batch):
            if decision is not self._last:
                for seq in decision.preempted:
                    self._decoding.pop(seq.id, None)
                prefilling = {seq.id for seq, _ in decision.prefills}
                # Those swapped in decode at once.
                self._decoding |= {seq.id: seq for seq in decision.admitted if seq.id not in prefilling}
            self.steps.append(self._record(decision, decision is not self._last, now_ns / 1e9))
            self._last = decision
        return decision

    def steady_steps(self, batch: Batch, max_steps: int) -> int:
        """As the policy says."""
        return self._inner.steady_steps(batch, max_steps)

    def can_interrupt(self, request: Request) -> bool:
        """As the policy says."""
        return self._inner.can_interrupt(request)

    def finish_step(self, batch: Batch, num_steps: int) -> list[Sequence]:
        """One step is done. More than one at once cannot be told apart."""
        assert num_steps == 1, "run with fast-forward off"
        complete = self._inner.finish_step(batch, num_steps)
        self._decoding |= {seq.id: seq for seq in complete}
        return complete

    def finish(self, seq: Sequence) -> list[Sequence]:
        """The sequence decodes no more."""
        self._decoding.pop(seq.id, None)
        return self._inner.finish(seq)

    def abort(self, seq: Sequence) -> list[Sequence]:
        """The sequence decodes no more."""
        self._decoding.pop(seq.id, None)
        return self._inner.abort(seq)

    def _record(self, batch: Batch, is_new: bool, now_s: float) -> StepRecord:
        clock = self.pool.cohort.clock
        decoding = self._decoding.values() if batch.num_decodes else ()  # in a step of prefills alone the others wait
        contexts = [
            (seq.id, seq.num_computed_tokens + clock - seq.joined_clock)
            for seq in decoding
            if seq.joined_clock >= 0  # else it misses this step
        ]
        return StepRecord(
            prefills=tuple(Prefill(seq.id, new, seq.num_computed_tokens) for seq, new in batch.prefills),
            decodes=tuple(Decode(*context) for context in contexts),
            admitted=tuple(seq.id for seq in batch.admitted) if is_new else (),
            preempted=tuple(seq.id for seq in batch.preempted) if is_new else (),
            num_batched_tokens=batch.num_batched_tokens,
            free_blocks=self.pool.allocator.num_free_blocks,
            begin=Stamp(now_s, now_s),
        )
