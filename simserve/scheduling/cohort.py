"""Sequences that decode together, advanced without touching each of them."""

from __future__ import annotations

from collections.abc import Iterator

from simserve.request import Sequence
from simserve.scheduling.least import Least


class DecodeCohort:
    """Every member computes one token per decode step, so one clock stands for all their counters.

    A member's counters are settled when it leaves; until then it has taken ``clock - seq.joined_clock`` more steps than
    they say. Members stand in order of admission. ``context_tokens`` is what all of them have in the cache.
    """

    def __init__(self) -> None:
        self.clock = 0
        self.context_tokens = 0
        self._members: dict[int, Sequence] = {}
        self._behind: Least | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members.values())

    def num_computed_tokens(self, seq: Sequence) -> int:
        """What a member has computed by now."""
        return seq.num_computed_tokens + self.clock - seq.joined_clock

    @property
    def num_step_tokens(self) -> int:
        """Tokens that a step computes for all members."""
        return len(self._members)

    @property
    def coming_tokens(self) -> int:
        """Tokens that a step writes into the cache."""
        return len(self._members)

    def steps_to_emit(self, seq: Sequence, num_tokens: int) -> int:
        """Steps until a member has emitted ``num_tokens`` more, its last ones."""
        return num_tokens

    @property
    def max_context_tokens(self) -> int:
        """What the member with the longest context has in the cache; 0 without members, and unless ``watch_longest``
        was called."""
        least = None if self._behind is None else self._behind.value()
        return 0 if least is None else self.clock - least

    def watch_longest(self) -> None:
        """Keep ``max_context_tokens`` from here on: 3 % of the engine's time, so only for a model that reads it.

        All members grow alike, so nobody overtakes: what is kept of each is by how much its context is behind the
        clock, which does not change while it stays.
        """
        self._behind = Least()
        for seq in self._members.values():
            self._behind.add(seq.joined_clock - seq.num_computed_tokens)

    def join(self, seq: Sequence) -> None:
        """Add a sequence whose known tokens are all computed but the last."""
        seq.joined_clock = self.clock
        out_of_order = self._members and self.last().admission > seq.admission
        self._members[seq.id] = seq
        if out_of_order:  # a swapped sequence decoded at once, while one admitted before it had to recompute
            self._members = {s.id: s for s in sorted(self._members.values(), key=lambda s: s.admission)}
        self.context_tokens += seq.num_computed_tokens
        if self._behind is not None:
            self._behind.add(self.clock - seq.num_computed_tokens)

    def leave(self, seq: Sequence) -> None:
        """Settle the sequence's counters and drop it."""
        del self._members[seq.id]
        if self._behind is not None:
            self._behind.remove(seq.joined_clock - seq.num_computed_tokens)
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
