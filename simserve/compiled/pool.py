"""Waiting, running and gone, and the blocks of the paged cache: ``Pool``, ``DecodeCohort``, ``PagedAllocator``.

Only numbers of blocks are kept: which ones they are is nowhere recorded, and without sharing it changes nothing.
"""

from __future__ import annotations

from simserve.compiled import at, heaps
from simserve.compiled.jit import compiled
from simserve.compiled.world import NEVER, NOBODY, World


@compiled
def num_waiting(w: World) -> int:
    """Sequences in the queue."""
    s = w.counters
    return int(s[at.NUM_FRESH] + s[at.NUM_BACK])


@compiled
def head(w: World) -> int:
    """The next to be served: who was preempted first, then by arrival."""
    s = w.counters
    return int(w.back[0] if s[at.NUM_BACK] else s[at.FRESH_HEAD])


@compiled
def arrive_until(w: World, end: int) -> None:
    """Queue all requests that come before ``end``; what can never be served is over at once."""
    s = w.counters
    while s[at.NEXT_ROW] < s[at.NUM_REQUESTS] and w.requests[s[at.NEXT_ROW], at.ARRIVAL_NS] < end:
        if w.requests[s[at.NEXT_ROW], at.IS_REFUSED]:
            w.requests[s[at.NEXT_ROW], at.END_NS] = w.requests[s[at.NEXT_ROW], at.ARRIVAL_NS]
            s[at.NUM_ENDED] += 1
        else:
            if s[at.NUM_FRESH] == 0:
                s[at.FRESH_HEAD] = s[at.NEXT_ROW]
            s[at.NUM_FRESH] += 1
        s[at.NEXT_ROW] += 1


@compiled
def has_free_slot(w: World) -> bool:
    """Whether another sequence may run."""
    s = w.counters
    return bool(s[at.NUM_RUNNING] < s[at.MAX_NUM_SEQS])


@compiled
def can_admit(w: World, seq: int) -> bool:
    """Whether all known tokens fit and the watermark stays free."""
    s = w.counters
    return bool(blocks_for(w, num_known(w, seq)) <= s[at.FREE_BLOCKS] - s[at.WATERMARK_BLOCKS])


@compiled
def num_known(w: World, seq: int) -> int:
    """Prompt and what was generated."""
    return int(w.requests[seq, at.NUM_PROMPT] + w.requests[seq, at.GENERATED])


@compiled
def blocks_for(w: World, num_tokens: int) -> int:
    """Blocks that so many tokens take."""
    size = w.counters[at.BLOCK_SIZE]
    return int((num_tokens + size - 1) // size)


@compiled
def admit(w: World, seq: int, num_tokens: int) -> None:
    """Let the head of the queue, ``seq``, run, with room for ``num_tokens``."""
    s = w.counters
    if s[at.NUM_BACK]:
        heaps.pop(w.back, s[at.NUM_BACK])
        s[at.NUM_BACK] -= 1
    else:
        s[at.NUM_FRESH] -= 1
        s[at.FRESH_HEAD] += 1
        while s[at.FRESH_HEAD] < s[at.NEXT_ROW] and w.requests[s[at.FRESH_HEAD], at.IS_REFUSED]:
            s[at.FRESH_HEAD] += 1
    s[at.NUM_RUNNING] += 1
    s[at.NUM_ADMISSIONS] += 1
    w.requests[seq, at.ADMISSION] = s[at.NUM_ADMISSIONS]
    allocate(w, seq, num_tokens)


@compiled
def allocate(w: World, seq: int, num_tokens: int) -> None:
    """Extend what a sequence that does not decode holds to ``num_tokens``."""
    more = blocks_for(w, num_tokens) - w.requests[seq, at.BLOCKS]
    if more > 0:
        w.requests[seq, at.BLOCKS] += more
        w.counters[at.FREE_BLOCKS] -= more


@compiled
def start_decoding(w: World, seq: int) -> None:
    """A prefill is complete and its token emitted: the sequence joins the cohort, and grows."""
    s = w.counters
    w.requests[seq, at.GENERATED] += 1
    w.requests[seq, at.JOINED_CLOCK], w.requests[seq, at.JOINED_GROWTH] = s[at.CLOCK], s[at.GROWTH_CLOCK]
    w.requests[seq, at.BEFORE], w.requests[seq, at.AFTER] = s[at.COHORT_LAST], NOBODY
    if s[at.COHORT_LAST] != NOBODY:
        w.requests[s[at.COHORT_LAST], at.AFTER] = seq
    s[at.COHORT_LAST] = seq
    s[at.NUM_DECODING] += 1
    s[at.CONTEXT_TOKENS] += w.requests[seq, at.COMPUTED]
    w.phases[_phase(w, seq)] += 1


@compiled
def stop_decoding(w: World, seq: int) -> None:
    """Settle the sequence's counters and let it leave cohort and growth; it holds its blocks still."""
    s = w.counters
    w.phases[_phase(w, seq)] -= 1
    w.requests[seq, at.BLOCKS] = blocks_for(
        w, w.requests[seq, at.COMPUTED] + s[at.GROWTH_CLOCK] - w.requests[seq, at.JOINED_GROWTH]
    )
    num_steps = s[at.CLOCK] - w.requests[seq, at.JOINED_CLOCK]
    w.requests[seq, at.JOINED_CLOCK] = NEVER
    w.requests[seq, at.COMPUTED] += num_steps
    w.requests[seq, at.GENERATED] += num_steps
    s[at.NUM_DECODING] -= 1
    s[at.CONTEXT_TOKENS] -= w.requests[seq, at.COMPUTED]
    before, after = w.requests[seq, at.BEFORE], w.requests[seq, at.AFTER]
    if before != NOBODY:
        w.requests[before, at.AFTER] = after
    if after != NOBODY:
        w.requests[after, at.BEFORE] = before
    else:
        s[at.COHORT_LAST] = before


@compiled
def preempt(w: World, seq: int) -> None:
    """Put a running sequence back at the head of the queue; it will recompute."""
    s = w.counters
    if w.requests[seq, at.JOINED_CLOCK] != NEVER:
        stop_decoding(w, seq)
    else:
        s[at.OTHER_TOKENS] -= w.requests[seq, at.COMPUTED]
    release(w, seq)
    w.requests[seq, at.RECOMPUTED] += w.requests[seq, at.COMPUTED]
    w.requests[seq, at.COMPUTED] = 0
    w.requests[seq, at.PREEMPTIONS] += 1
    heaps.push(w.back, s[at.NUM_BACK], seq)
    s[at.NUM_BACK] += 1
    w.preempted[s[at.NUM_PREEMPTED]] = seq
    s[at.NUM_PREEMPTED] += 1


@compiled
def release(w: World, seq: int) -> None:
    """Slot and blocks are free."""
    s = w.counters
    s[at.FREE_BLOCKS] += w.requests[seq, at.BLOCKS]
    w.requests[seq, at.BLOCKS] = 0
    s[at.NUM_RUNNING] -= 1


@compiled
def growth_demand(w: World, num_steps: int) -> int:
    """Blocks that growing takes in ``num_steps`` steps."""
    s = w.counters
    demand = num_steps // s[at.BLOCK_SIZE] * s[at.NUM_DECODING]
    for step in range(num_steps % s[at.BLOCK_SIZE]):
        demand += w.phases[-(s[at.GROWTH_CLOCK] + step) % s[at.BLOCK_SIZE]]
    return int(demand)


@compiled
def growth_limit(w: World, max_steps: int) -> int:
    """The largest n ≤ ``max_steps`` whose demand the free blocks cover."""
    s = w.counters
    free = s[at.FREE_BLOCKS]
    if s[at.NUM_DECODING] * (max_steps // s[at.BLOCK_SIZE] + 1) <= free:
        return max_steps
    steps = free // s[at.NUM_DECODING] * s[at.BLOCK_SIZE]
    free = free % s[at.NUM_DECODING]
    while steps < max_steps:
        free -= w.phases[-(s[at.GROWTH_CLOCK] + steps) % s[at.BLOCK_SIZE]]
        if free < 0:
            break
        steps += 1
    return int(min(steps, max_steps))


@compiled
def grow(w: World, num_steps: int) -> None:
    """Hand out the blocks into which growing sequences cross in ``num_steps`` steps."""
    s = w.counters
    s[at.FREE_BLOCKS] -= growth_demand(w, num_steps)
    s[at.GROWTH_CLOCK] += num_steps


@compiled
def used_tokens(w: World) -> int:
    """Tokens in the cache."""
    s = w.counters
    return int(s[at.CONTEXT_TOKENS] + s[at.OTHER_TOKENS])


@compiled
def _phase(w: World, seq: int) -> int:
    """Where in a block it was at growth clock 0, as long as its counters stand as when it joined."""
    return int((w.requests[seq, at.COMPUTED] - w.requests[seq, at.JOINED_GROWTH]) % w.counters[at.BLOCK_SIZE])
