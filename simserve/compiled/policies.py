"""The next step's decision: ``ChunkedScheduler`` and ``ContinuousScheduler``."""

from __future__ import annotations

from simserve.compiled import at, pool
from simserve.compiled.jit import compiled
from simserve.compiled.world import NOBODY, World


@compiled
def schedule(w: World) -> bool:
    """Decide; False if nothing can run."""
    s = w.counters
    s[at.NUM_ADMITTED], s[at.NUM_PREEMPTED], s[at.IS_NEW] = 0, 0, 0
    return _chunked(w) if s[at.IS_CHUNKED] else _continuous(w)


@compiled
def steady_steps(w: World, max_steps: int) -> int:
    """For how many steps, up to ``max_steps``, the decision stands if nothing finishes or arrives."""
    s = w.counters
    if s[at.PASSED_OVER]:
        return 1
    if s[at.NUM_PREFILLS] == 0:
        return 1 + pool.growth_limit(w, max_steps - 1)
    seq, chunk = w.prefills[0, at.PREFILL_ID], w.prefills[0, at.PREFILL_TOKENS]
    full_chunks = min(max_steps, (pool.num_known(w, seq) - w.requests[seq, at.COMPUTED]) // chunk)
    if s[at.NUM_PREFILLS] > 1 or full_chunks <= 1 or not s[at.IS_CHUNKED]:
        return 1
    low, high = 1, full_chunks  # the most steps whose demand the free blocks cover
    while low < high:
        middle = (low + high + 1) // 2
        reached = w.requests[seq, at.COMPUTED] + middle * chunk
        more = max(0, pool.blocks_for(w, reached) - w.requests[seq, at.BLOCKS])
        if pool.growth_demand(w, middle - 1) + more <= s[at.FREE_BLOCKS]:
            low = middle
        else:
            high = middle - 1
    return int(low)


@compiled
def can_interrupt(w: World) -> bool:
    """Whether an arrival could change the decision: it would be admitted at once."""
    s = w.counters
    if not pool.has_free_slot(w) or pool.num_waiting(w):
        return False
    if not s[at.IS_CHUNKED]:
        return True
    tokens = s[at.NUM_DECODES]
    for i in range(s[at.NUM_PREFILLS]):
        tokens += w.prefills[i, at.PREFILL_TOKENS]
    return bool(s[at.STANDS] and tokens < s[at.MAX_NUM_BATCHED_TOKENS])


@compiled
def finish_step(w: World, num_steps: int) -> None:
    """The decision was carried out ``num_steps`` times; complete prefills do not join the cohort yet."""
    s = w.counters
    if s[at.IS_CHUNKED] or s[at.NUM_PREFILLS] == 0:
        s[at.CLOCK] += num_steps * (s[at.NUM_DECODING] > 0)
        s[at.CONTEXT_TOKENS] += num_steps * s[at.NUM_DECODING]
        pool.grow(w, num_steps - 1)
    for i in range(s[at.NUM_PREFILLS]):
        seq, tokens = w.prefills[i, at.PREFILL_ID], w.prefills[i, at.PREFILL_TOKENS]
        s[at.OTHER_TOKENS] += num_steps * tokens
        w.requests[seq, at.COMPUTED] += num_steps * tokens
        pool.allocate(w, seq, w.requests[seq, at.COMPUTED])


@compiled
def _chunked(w: World) -> bool:
    s = w.counters
    while _demand(w) > s[at.FREE_BLOCKS]:
        victim = s[at.PARTIAL] if s[at.PARTIAL] != NOBODY else s[at.COHORT_LAST]
        s[at.PARTIAL] = NOBODY
        pool.preempt(w, victim)
    s[at.PASSED_OVER] = s[at.NUM_PREEMPTED] > 0
    chunk = _partial_chunk(w)
    if chunk:
        pool.allocate(w, s[at.PARTIAL], w.requests[s[at.PARTIAL], at.COMPUTED] + chunk)
    partial = s[at.PARTIAL] if chunk else NOBODY
    pool.grow(w, 1)
    if s[at.NUM_PREEMPTED] == 0 and pool.num_waiting(w):
        _admit_chunks(w, s[at.MAX_NUM_BATCHED_TOKENS] - s[at.NUM_DECODING] - chunk, 1 if chunk else 0)
    if partial == NOBODY and s[at.NUM_ADMITTED] == 0 and s[at.NUM_DECODING] == 0:
        return False
    is_same = s[at.NUM_PREFILLS] == 0 if partial == NOBODY else _is_sole_prefill(w, partial, chunk)
    if s[at.STANDS] and is_same and s[at.NUM_ADMITTED] == 0 and s[at.NUM_PREEMPTED] == 0:
        return True
    if partial != NOBODY:
        w.prefills[0, at.PREFILL_ID], w.prefills[0, at.PREFILL_TOKENS] = partial, chunk
    _decided(w, s[at.NUM_ADMITTED] + (partial != NOBODY), s[at.NUM_DECODING], s[at.CONTEXT_TOKENS])
    return True


@compiled
def _continuous(w: World) -> bool:
    s = w.counters
    if pool.num_waiting(w):
        _admit_whole(w)
    if s[at.NUM_ADMITTED]:
        _decided(w, s[at.NUM_ADMITTED], 0, 0)
        s[at.STANDS] = 0
        s[at.PASSED_OVER] = 0
        return True
    while pool.growth_demand(w, 1) > s[at.FREE_BLOCKS]:
        pool.preempt(w, s[at.COHORT_LAST])
    s[at.PASSED_OVER] = s[at.NUM_PREEMPTED] > 0
    if s[at.NUM_DECODING] == 0:
        return False
    pool.grow(w, 1)
    if not s[at.STANDS] or s[at.NUM_PREEMPTED]:
        _decided(w, 0, s[at.NUM_DECODING], s[at.CONTEXT_TOKENS])
    return True


@compiled
def _decided(w: World, num_prefills: int, num_decodes: int, decode_context: int) -> None:
    """A new decision."""
    s = w.counters
    s[at.NUM_PREFILLS], s[at.NUM_DECODES], s[at.DECODE_CONTEXT] = num_prefills, num_decodes, decode_context
    for i in range(num_prefills):
        w.prefills[i, at.PREFILL_CONTEXT] = w.requests[w.prefills[i, at.PREFILL_ID], at.COMPUTED]
    s[at.STANDS], s[at.IS_NEW] = 1, 1


@compiled
def _is_sole_prefill(w: World, seq: int, chunk: int) -> bool:
    return bool(
        w.counters[at.NUM_PREFILLS] == 1
        and w.prefills[0, at.PREFILL_ID] == seq
        and w.prefills[0, at.PREFILL_TOKENS] == chunk
    )


@compiled
def _partial_chunk(w: World) -> int:
    s = w.counters
    if s[at.PARTIAL] == NOBODY:
        return 0
    rest = pool.num_known(w, s[at.PARTIAL]) - w.requests[s[at.PARTIAL], at.COMPUTED]
    return int(min(rest, s[at.MAX_NUM_BATCHED_TOKENS] - s[at.NUM_DECODING]))


@compiled
def _demand(w: World) -> int:
    s = w.counters
    demand = pool.growth_demand(w, 1)
    if s[at.PARTIAL] != NOBODY:
        reached = w.requests[s[at.PARTIAL], at.COMPUTED] + _partial_chunk(w)
        demand += max(0, pool.blocks_for(w, reached) - w.requests[s[at.PARTIAL], at.BLOCKS])
    return int(demand)


@compiled
def _admit_chunks(w: World, budget: int, place: int) -> None:
    """Admit from the queue while slots, ``budget`` and cache last; the first prefill stands at ``place``."""
    s = w.counters
    while pool.num_waiting(w) and budget > 0 and pool.has_free_slot(w):
        seq = pool.head(w)
        if not pool.can_admit(w, seq):
            break
        known = pool.num_known(w, seq)
        chunk = min(known, budget)
        _admit(w, seq, chunk, place + s[at.NUM_ADMITTED])
        budget -= chunk
        if chunk < known:
            s[at.PARTIAL] = seq


@compiled
def _admit_whole(w: World) -> None:
    """Admit whole prompts while slots, the budget of a step and cache last."""
    s = w.counters
    budget = s[at.MAX_NUM_BATCHED_TOKENS]
    while pool.num_waiting(w) and pool.has_free_slot(w):
        seq = pool.head(w)
        tokens = pool.num_known(w, seq)
        if tokens > budget or not pool.can_admit(w, seq):
            break
        budget -= tokens
        _admit(w, seq, tokens, s[at.NUM_ADMITTED])


@compiled
def _admit(w: World, seq: int, tokens: int, place: int) -> None:
    s = w.counters
    pool.admit(w, seq, tokens)
    w.prefills[place, at.PREFILL_ID], w.prefills[place, at.PREFILL_TOKENS] = seq, tokens
    w.admitted[s[at.NUM_ADMITTED]] = seq
    s[at.NUM_ADMITTED] += 1
