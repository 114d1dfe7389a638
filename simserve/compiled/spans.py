"""Rows of ``SpanRecords`` and ``OccupancyRecords``, as ``Recorder`` writes them."""

from __future__ import annotations

from simserve.compiled import at, heaps, pool
from simserve.compiled.jit import compiled
from simserve.compiled.world import NEVER, World


@compiled
def open_span(w: World, now: int) -> None:
    """Open a row for the standing decision."""
    s = w.counters
    own = 0
    for i in range(s[at.NUM_PREFILLS]):
        own += w.prefills[i, at.PREFILL_TOKENS]
    _begin(w, now, own + s[at.NUM_DECODES])
    span = w.spans[s[at.NUM_SPANS]]
    span[at.SPAN_NUM_SEQS] = s[at.NUM_PREFILLS] + s[at.NUM_DECODES]
    span[at.SPAN_NUM_DECODES] = s[at.NUM_DECODES]
    span[at.SPAN_NUM_PREFILL_TOKENS] = own
    s[at.SPAN_IS_OPEN] = 1


@compiled
def advance(w: World, begin: int, num_steps: int, num_live: int) -> None:
    """Steps ``begin`` to ``begin + num_steps`` of the decision passed, ``num_live`` sequences decoding."""
    s = w.counters
    span = w.spans[s[at.NUM_SPANS]]
    num_emitting = num_live if s[at.NUM_DECODES] else 0
    span[at.SPAN_NUM_STEPS] += num_steps
    span[at.SPAN_NUM_EMITTED_TOKENS] += num_steps * num_emitting
    s[at.NUM_STEPS] += num_steps
    s[at.NUM_COMPUTED_TOKENS] += num_steps * (span[at.SPAN_NUM_PREFILL_TOKENS] + num_emitting)
    s[at.NUM_ATTENTION_PAIRS] += _attention_pairs(w, begin, num_steps)
    span[at.SPAN_NUM_WAITING_END] = pool.num_waiting(w)
    span[at.SPAN_KV_USED_END] = pool.used_tokens(w)
    span[at.SPAN_KV_RESERVED_UNUSED_END] = 0
    span[at.SPAN_KV_INTERNAL_END] = _held(w) - span[at.SPAN_KV_USED_END]


@compiled
def end_span(w: World, now: int) -> None:
    """The open row, if any, ends now."""
    s = w.counters
    if s[at.SPAN_IS_OPEN]:
        w.spans[s[at.NUM_SPANS], at.SPAN_END_NS] = now
        s[at.NUM_SPANS] += 1
        s[at.SPAN_IS_OPEN] = 0


@compiled
def idle(w: World, begin: int, end: int) -> None:
    """Nothing runs from ``begin`` to ``end``."""
    end_span(w, begin)
    _begin(w, begin, 0)
    s = w.counters
    w.spans[s[at.NUM_SPANS], at.SPAN_END_NS] = end
    s[at.NUM_SPANS] += 1


@compiled
def take_slot(w: World, seq: int, now: int) -> None:
    """The sequence got a slot."""
    s, request = w.counters, w.requests[seq]
    request[at.SLOT] = heaps.pop(w.free_slots, s[at.NUM_FREE_SLOTS])
    s[at.NUM_FREE_SLOTS] -= 1
    request[at.ADMITTED_NS] = now
    request[at.DECODING_NS] = NEVER


@compiled
def free_slot(w: World, seq: int, idle_ns: int, now: int) -> None:
    """The slot is free; ``idle_ns`` is when the sequence had its last token, or NEVER."""
    s, request = w.counters, w.requests[seq]
    row = w.occupancy[s[at.NUM_OCCUPANCY]]
    row[at.HELD_REQUEST_ID] = seq
    row[at.HELD_SLOT] = request[at.SLOT]
    row[at.HELD_ADMITTED_NS] = request[at.ADMITTED_NS]
    row[at.HELD_DECODING_NS] = request[at.DECODING_NS]
    row[at.HELD_IDLE_NS] = idle_ns
    row[at.HELD_RELEASED_NS] = now
    s[at.NUM_OCCUPANCY] += 1
    heaps.push(w.free_slots, s[at.NUM_FREE_SLOTS], request[at.SLOT])
    s[at.NUM_FREE_SLOTS] += 1


@compiled
def _begin(w: World, now: int, coming: int) -> None:
    """A row with what holds now; ``coming`` tokens are computed by its first step."""
    s = w.counters
    span = w.spans[s[at.NUM_SPANS]]
    span[at.SPAN_BEGIN_NS] = now
    span[at.SPAN_NUM_STEPS] = span[at.SPAN_NUM_SEQS] = span[at.SPAN_NUM_DECODES] = span[
        at.SPAN_NUM_PREFILL_TOKENS
    ] = span[at.SPAN_NUM_EMITTED_TOKENS] = 0
    span[at.SPAN_NUM_RUNNING_BEGIN] = s[at.NUM_RUNNING]
    span[at.SPAN_NUM_WAITING_BEGIN] = span[at.SPAN_NUM_WAITING_END] = pool.num_waiting(w)
    span[at.SPAN_KV_USED_BEGIN] = span[at.SPAN_KV_USED_END] = pool.used_tokens(w)
    span[at.SPAN_KV_RESERVED_UNUSED_BEGIN] = span[at.SPAN_KV_RESERVED_UNUSED_END] = coming
    span[at.SPAN_KV_INTERNAL_BEGIN] = span[at.SPAN_KV_INTERNAL_END] = _held(w) - span[at.SPAN_KV_USED_BEGIN] - coming


@compiled
def _held(w: World) -> int:
    """Tokens in all blocks that somebody holds."""
    s = w.counters
    return int(s[at.BLOCK_SIZE] * (s[at.NUM_USABLE_BLOCKS] - s[at.FREE_BLOCKS]))


@compiled
def _attention_pairs(w: World, begin: int, num_steps: int) -> int:
    """``Batch.num_attention_pairs``."""
    s = w.counters
    steps = num_steps * begin + num_steps * (num_steps - 1) // 2
    pairs = num_steps * (s[at.DECODE_CONTEXT] + s[at.NUM_DECODES]) + s[at.NUM_DECODES] * steps
    for i in range(s[at.NUM_PREFILLS]):
        new, context = w.prefills[i, at.PREFILL_TOKENS], w.prefills[i, at.PREFILL_CONTEXT]
        pairs += new * (num_steps * context + new * steps) + num_steps * (new * (new + 1) // 2)
    return int(pairs)
