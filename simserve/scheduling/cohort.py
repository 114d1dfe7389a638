"""Sequences that decode together, advanced without touching each of them."""

from __future__ import annotations

from simserve.request import Sequence


class DecodeCohort:
    """Every member computes one token per decode step, so one clock stands for all their counters.

    A member's counters are settled when it leaves; until then it has taken ``clock - seq.joined_clock`` more steps than
    they say. Members stand in order of admission. ``context_tokens`` is what all of them have in the cache.
    """

    def __init__(self) -> None:
        self.clock = 0
        self.context_tokens = 0
        self._members: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, seq: Sequence) -> None:
        """Add a sequence whose known tokens are all computed but the last."""
        seq.joined_clock = self.clock
        out_of_order = self._members and self.last().admission > seq.admission
        self._members[seq.id] = seq
        if out_of_order:  # a swapped sequence decoded at once, while one admitted before it had to recompute
            self._members = {s.id: s for s in sorted(self._members.values(), key=lambda s: s.admission)}
        self.context_tokens += seq.num_computed_tokens

    def leave(self, seq: Sequence) -> None:
        """Settle the sequence's counters and drop it."""
        del self._members[seq.id]
        num_steps = self.clock - seq.joined_clock
        seq.joined_clock = -1
        seq.num_computed_tokens += num_steps
        seq.num_generated_tokens += num_steps
        self.context_tokens -= seq.num_computed_tokens

    def last(self) -> Sequence:
        """The member admitted last."""
        return next(reversed(self._members.values()))

    def advance(self, num_steps: int) -> None:
        """Every member takes ``num_steps`` decode steps."""
        self.clock += num_steps
        self.context_tokens += num_steps * len(self._members)
