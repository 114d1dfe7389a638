"""Sequences that decode with drafts: each gets on by its own number of tokens in a pass."""

from __future__ import annotations

from typing import NamedTuple

from simserve.kv_cache.lookahead import Lookahead
from simserve.request import Sequence
from simserve.scheduling.cohort import DecodeCohort
from simserve.speculation.acceptance import Acceptance


class Pass(NamedTuple):
    """What one pass gave: how many sequences took part, the tokens they emitted and the drafts they accepted."""

    num_seqs: int = 0
    num_emitted: int = 0
    num_accepted: int = 0


class DraftingCohort(DecodeCohort):
    """``clock`` counts passes. Counters of members are always up to date, and a pass costs work for each of them."""

    def __init__(self, acceptance: Acceptance, lookahead: Lookahead) -> None:
        super().__init__()
        self.last_pass = Pass()
        self._acceptance = acceptance
        self._lookahead = lookahead
        self._lacking: dict[int, int] = {}  # tokens until an answer ends: for the engine's stop check alone
        self._watches_longest = False

    @property
    def num_drafts(self) -> int:
        """Drafts of a pass, γ."""
        return self._acceptance.num_drafts

    @property
    def num_step_tokens(self) -> int:
        """Tokens that a step computes for all members."""
        return len(self._members) * (1 + self.num_drafts)

    @property
    def coming_tokens(self) -> int:
        """Tokens that a step writes into the cache, to stay or not."""
        room = self._lookahead.room
        return sum(room(seq) - seq.num_computed_tokens for seq in self._members.values())

    @property
    def max_context_tokens(self) -> int:
        """What the member with the longest context has in the cache; 0 without members, and unless watched."""
        if not self._watches_longest:
            return 0
        return max((seq.num_computed_tokens for seq in self._members.values()), default=0)

    def watch_longest(self) -> None:
        """Keep ``max_context_tokens`` from here on."""
        self._watches_longest = True

    def num_computed_tokens(self, seq: Sequence) -> int:
        """What a member has computed by now."""
        return seq.num_computed_tokens

    def steps_to_emit(self, seq: Sequence, num_tokens: int) -> int:
        """Passes until a member has emitted ``num_tokens`` more, its last ones: drafts beyond them come to nothing."""
        self._lacking[seq.id] = num_tokens
        generated, end, num_passes = seq.num_generated_tokens, seq.num_generated_tokens + num_tokens, 0
        while generated < end:
            generated += 1 + self._acceptance.num_accepted(seq.id, generated)
            num_passes += 1
        return num_passes

    def leave(self, seq: Sequence) -> None:
        """Drop the sequence."""
        del self._members[seq.id]
        self._lacking.pop(seq.id, None)
        seq.joined_clock = -1
        self.context_tokens -= seq.num_computed_tokens

    def advance(self, num_steps: int) -> None:
        """Every member takes one pass."""
        assert num_steps == 1, "who accepts what differs from pass to pass"
        accepted_by, lacking = self._acceptance.num_accepted, self._lacking
        num_emitted = num_accepted = 0
        for seq in self._members.values():
            accepted = accepted_by(seq.id, seq.num_generated_tokens)
            emitted = min(1 + accepted, lacking[seq.id])
            lacking[seq.id] -= emitted
            seq.num_computed_tokens += emitted
            seq.num_generated_tokens += emitted
            num_emitted += emitted
            num_accepted += accepted
        self.clock += 1
        self.context_tokens += num_emitted
        self.last_pass = Pass(len(self._members), num_emitted, num_accepted)
