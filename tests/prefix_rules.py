"""One small case per rule of the prefix cache, with the outcome worked out by hand: steps of 10 ms, times in ms.

Prompts are written as letters, a letter per content block of ``of`` tokens, and as many tokens more as a number says;
unless said otherwise blocks have four tokens. An answer of n takes n steps, and its last token is never computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.clients import OPEN_LOOP, STAYS, RetryPolicy
from simserve.request import RequestTable
from tests.prefixes import content_of
from tests.reference_types import Settings
from tests.step_times import ConstantStepTime
from tests.strategies import MS, Case, plan_of, table_of


@dataclass(frozen=True)
class PrefixRule:
    """A case; the tokens that each request hits, when it is first scheduled and ends; and blocks evicted in all."""

    case: Case
    hits: tuple[int, ...]
    scheduled: tuple[float, ...]
    ends: tuple[float, ...]
    num_evictions: int = 0
    num_preemptions: int = 0


ROOMY = Settings("chunked", "paged", 3, 100, 100, num_blocks=100, block_size=4, prefix_caching=True)
WHOLE = replace(ROOMY, policy="continuous")
ONE_BY_ONE = replace(ROOMY, max_num_seqs=1)


def cache_of(num_blocks: int, **more: object) -> Settings:
    """One request at a time over so many blocks."""
    return replace(ONE_BY_ONE, num_blocks=num_blocks, **more)


def asks(*prompts: tuple[str, int], at=0, answers=1, of: int = 4) -> RequestTable:
    """Requests whose prompts are letters and some tokens more; ``at`` in ms."""
    n = len(prompts)
    times = [ms * MS for ms in ([at] * n if isinstance(at, int) else at)]
    lengths = [of * len(letters) + more for letters, more in prompts]
    outputs = [answers] * n if isinstance(answers, int) else list(answers)
    return table_of(times, lengths, outputs, content=content_of([letters for letters, _ in prompts], of))


def rule(table: RequestTable, s: Settings, hits, scheduled, ends, clients=OPEN_LOOP, **counts: int) -> PrefixRule:
    return PrefixRule(Case(table, s, ConstantStepTime(0.01), clients), hits, scheduled, ends, **counts)


HITS = {
    "two with a common beginning admitted in the same step share it already": rule(
        asks(("AB", 2), ("AB", 3)), ROOMY, hits=(0, 8), scheduled=(0, 0), ends=(10, 10)
    ),
    "and where prompts are prefilled whole": rule(
        asks(("AB", 2), ("AB", 3)), WHOLE, hits=(0, 8), scheduled=(0, 0), ends=(10, 10)
    ),
    "the last token of a prompt is always computed, and with it its block": rule(
        asks(("AB", 0), ("AB", 0), at=[0, 50]), ROOMY, hits=(0, 4), scheduled=(0, 50), ends=(10, 60)
    ),
    "with blocks of one token all but the last are hit": rule(
        asks(("ABCDEFG", 0), ("ABCDEFG", 0), of=1), replace(ROOMY, block_size=1), (0, 6), (0, 0), (10, 10)
    ),
    "a block that a prompt fills only in part is nobody's hit": rule(
        asks(("A", 3), ("A", 3)), ROOMY, hits=(0, 4), scheduled=(0, 0), ends=(10, 10)
    ),
    "only a run from the beginning is hit": rule(
        asks(("AB", 1), ("CB", 1), ("AC", 1)), ROOMY, hits=(0, 0, 4), scheduled=(0, 0, 0), ends=(10, 10, 10)
    ),
    "prompts of which nothing is known have nothing in common": rule(
        table_of([0, 0], [9, 9], [1, 1]), ROOMY, hits=(0, 0), scheduled=(0, 0), ends=(10, 10)
    ),
    "what is generated is nobody else's": rule(
        # The first has A and five tokens of its own at the end; the second's prompt goes on otherwise.
        asks(("A", 0), ("AB", 0), at=[0, 60], answers=[6, 1]),
        ROOMY,
        (0, 4),
        (0, 60),
        (60, 70),
    ),
    "a content block of two cache blocks is hit as both": rule(
        asks(("A", 3), ("A", 3), of=8), ROOMY, hits=(0, 8), scheduled=(0, 0), ends=(10, 10)
    ),
    "or as one, where the last token is in the other": rule(
        asks(("A", 0), ("A", 0), of=8), ROOMY, hits=(0, 4), scheduled=(0, 0), ends=(10, 10)
    ),
    "three content blocks of half a cache block are hit as one": rule(
        asks(("ABC", 1), ("ABC", 1), of=2), ROOMY, hits=(0, 4), scheduled=(0, 0), ends=(10, 10)
    ),
    "a prompt cut into chunks is hit as far as it has been scheduled": rule(
        # Eight tokens a step: the first takes two; in the third it decodes, and four tokens are left for the second,
        # which hits three blocks of four.
        asks(("ABCD", 0), ("ABCD", 0), answers=[2, 1]),
        replace(ROOMY, max_num_batched_tokens=8),
        (0, 12),
        (0, 20),
        (30, 30),
    ),
    "hits cost no budget": rule(
        # Sixteen tokens a step: twelve of the first, and of the second four that it does not hit.
        asks(("ABC", 0), ("ABC", 0)),
        replace(WHOLE, max_num_batched_tokens=16),
        (0, 8),
        (0, 0),
        (10, 10),
    ),
    "without prefix caching nothing is hit": rule(
        asks(("AB", 2), ("AB", 3)), replace(ROOMY, prefix_caching=False), (0, 0), (0, 0), (10, 10)
    ),
    "who left in the middle leaves hits behind": rule(
        # Four tokens a step: the first leaves in the third of five.
        asks(("ABCDE", 0), ("ABCDE", 0), at=[0, 30]),
        replace(ONE_BY_ONE, max_num_batched_tokens=4),
        hits=(0, 12),
        scheduled=(0, 30),
        ends=(25, 50),
        clients=plan_of(cancel_after_ns=[25 * MS, STAYS]),
    ),
    "a second attempt hits what the first one left, whether or not the trace tells what it is": rule(
        table_of([0], [20], [1]),
        replace(ONE_BY_ONE, max_num_batched_tokens=4),
        hits=(12,),
        scheduled=(30,),
        ends=(50,),
        clients=plan_of(timeout_ns=25 * MS, retry=RetryPolicy(2, 5 * MS, 1.0, 10**12, 0.0, True, True)),
    ),
}

EVICTIONS = {
    "the tail of what was freed goes first": rule(
        # Six blocks: ABC takes three; VWXY takes the other three and C; ABCD hits A and B and takes two more, which Y
        # and X held; VWXY hits V and W and takes D and C.
        asks(("ABC", 0), ("VWXY", 0), ("ABCD", 0), ("VWXY", 0)),
        cache_of(6),
        hits=(0, 0, 8, 8),
        scheduled=(0, 10, 20, 30),
        ends=(10, 20, 30, 40),
        num_evictions=5,
    ),
    "a hit makes a block young again": rule(
        # Three blocks: A, then B, then A again with a token that takes the third; now YZ evicts B, not A.
        asks(("A", 0), ("B", 0), ("A", 1), ("YZ", 0), ("A", 1)),
        cache_of(3),
        hits=(0, 0, 4, 0, 4),
        scheduled=(0, 10, 20, 30, 40),
        ends=(10, 20, 30, 40, 50),
        num_evictions=2,
    ),
    "a block that nobody could hit is taken in its turn": rule(
        # Three blocks: B; then A and a token in the other two; C takes the oldest, B. B and a token hit nothing and
        # take the token's block and A.
        asks(("B", 0), ("A", 1), ("C", 0), ("B", 1)),
        cache_of(3),
        hits=(0, 0, 0, 0),
        scheduled=(0, 10, 20, 30),
        ends=(10, 20, 30, 40),
        num_evictions=2,
    ),
    "or before all others, where that is the rule": rule(
        # Now C takes the token's block, B is hit, and only A is evicted.
        asks(("B", 0), ("A", 1), ("C", 0), ("B", 1)),
        cache_of(3, nameless_first=True),
        hits=(0, 0, 0, 4),
        scheduled=(0, 10, 20, 30),
        ends=(10, 20, 30, 40),
        num_evictions=1,
    ),
    "what somebody holds is never evicted": rule(
        # The first holds three blocks from its second step on; C, D, E and the last, which hits A, share the fourth.
        asks(("AB", 0), ("C", 0), ("D", 0), ("E", 0), ("AB", 0), answers=[5, 1, 1, 1, 1]),
        replace(ROOMY, num_blocks=4, max_num_seqs=2),
        hits=(0, 0, 0, 0, 4),
        scheduled=(0, 0, 10, 20, 30),
        ends=(50, 10, 20, 30, 40),
        num_evictions=3,
    ),
}

DUPLICATES = {
    "the first of two equal blocks serves, and when it is gone the second": rule(
        # Four blocks: A B; A again with a B of its own; then YZ take the block that was free and the first B, and the
        # last, which hits A and the second B, takes a fourth.
        asks(("AB", 0), ("AB", 0), ("YZ", 0), ("AB", 1)),
        cache_of(4),
        hits=(0, 4, 0, 8),
        scheduled=(0, 10, 20, 30),
        ends=(10, 20, 30, 40),
        num_evictions=2,
    ),
    "a duplicate that is given back is one more free block, and the first still serves": rule(
        asks(("AB", 0), ("AB", 0), ("AB", 1)), cache_of(9), (0, 4, 8), (0, 10, 20), (10, 20, 30)
    ),
}

ADMISSION = {
    "a hit that is free takes a block from those that are free, as a new one does": rule(
        # Four blocks: AB leaves two cached, the second takes the other two until 40. The third hits the two that are
        # free and needs another, so it waits; then it takes the one that C's fifth token was in, which nobody can hit.
        asks(("AB", 0), ("C", 1), ("AB", 1), at=[0, 10, 15], answers=[1, 3, 1]),
        replace(ROOMY, num_blocks=4),
        hits=(0, 0, 8),
        scheduled=(0, 10, 40),
        ends=(10, 40, 50),
    ),
    "a hit that somebody holds takes none": rule(
        asks(("AB", 1), ("AB", 1)), replace(ROOMY, num_blocks=4), (0, 8), (0, 0), (10, 10)
    ),
    "the watermark stays free beside what is new": rule(
        # As before, but one block must stay free: the second waits until the first is done.
        asks(("AB", 1), ("AB", 1)),
        replace(ROOMY, num_blocks=4, watermark=0.25),
        (0, 8),
        (0, 10),
        (10, 20),
    ),
    "and no more than that": rule(
        asks(("AB", 1), ("AB", 1)), replace(ROOMY, num_blocks=5, watermark=0.2), (0, 8), (0, 0), (10, 10)
    ),
    "the null block is not there": rule(
        # Four of five: as with a watermark of one block, the first takes three and the third request finds none.
        asks(("AB", 1), ("AB", 1), ("AB", 1)),
        replace(ROOMY, num_blocks=5, null_blocks=1),
        hits=(0, 8, 8),
        scheduled=(0, 0, 10),
        ends=(10, 10, 20),
    ),
}

PREEMPTIONS = {
    "who was preempted hits what is left of its own": rule(
        # Seven blocks of two tokens. At 30 both have six tokens in three blocks and need a fourth, and one is free: the
        # second goes, with three tokens out. The first takes the free block, and at 50 the third of the second's. At 60
        # it is done. The second, of seven tokens, hits two blocks and takes the one that the first had just begun, then
        # two of the first's full ones.
        table_of([0, 0], [4, 4], [6, 6]),
        replace(ROOMY, num_blocks=7, block_size=2),
        hits=(0, 4),
        scheduled=(0, 0),
        ends=(60, 90),
        num_evictions=3,
        num_preemptions=1,
    ),
    "and shares with who was there what they have in common": rule(
        # Four blocks: A, a tail of each, and one free when both need a third at 20. The second goes; what it gives back
        # is its tail, for A is the first's too. At 30 it would hit both but find no third; at 40 it does.
        asks(("A", 3), ("A", 3), answers=[4, 4]),
        replace(ROOMY, num_blocks=4),
        hits=(0, 4 + 8),
        scheduled=(0, 0),
        ends=(40, 60),
        num_preemptions=1,
    ),
}

RULES = HITS | EVICTIONS | DUPLICATES | ADMISSION | PREEMPTIONS
