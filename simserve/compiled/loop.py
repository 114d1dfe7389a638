"""``Engine.run`` of the plain case, in pieces: it comes back when its rows must be fetched or enough has ended."""

from __future__ import annotations

from collections.abc import Callable

from simserve.compiled import at, gaps, heaps, policies, pool, spans, stretch
from simserve.compiled.jit import compiled, entry, sources
from simserve.compiled.world import NEVER, NOBODY, OCCUPANCY_ROWS, SPAN_ROWS, World

DONE, PAUSED, STALLED = 0, 1, 2
_FOREVER = 1 << 40


@compiled
def _run(w: World, num_ended: int) -> int:
    s = w.counters
    while s[at.NUM_ENDED] < num_ended and s[at.NUM_SPANS] < SPAN_ROWS - 4 and s[at.NUM_OCCUPANCY] < OCCUPANCY_ROWS:
        pool.arrive_until(w, s[at.NOW] + 1)
        if policies.schedule(w):
            num_steps = _plan(w)
            s[at.NOW] = s[at.ANCHOR] + stretch.end_ns(w, s[at.STEP] + num_steps)
            pool.arrive_until(w, s[at.NOW])
            _finish(w, num_steps)
        elif s[at.NUM_PREEMPTED] or s[at.NEXT_ROW] == s[at.NUM_REQUESTS]:
            spans.end_span(w, s[at.NOW])
            return STALLED if pool.num_waiting(w) else DONE
        else:
            wake = w.requests[s[at.NEXT_ROW], at.ARRIVAL_NS]
            spans.idle(w, s[at.NOW], wake)
            s[at.NOW] = wake
    return PAUSED


@compiled
def _plan(w: World) -> int:
    """The steps until the engine stops next."""
    s = w.counters
    if s[at.IS_NEW]:
        _change_decision(w)
    elif not s[at.SPAN_IS_OPEN]:
        spans.open_span(w, s[at.NOW])
    most = _FOREVER
    if s[at.NUM_DECODES]:
        heaps.next_finish(w)
        most = w.finishes[0, at.FINISH_CLOCK] - s[at.CLOCK]
    num_steps = policies.steady_steps(w, most)
    if num_steps > 1 and s[at.NEXT_ROW] < s[at.NUM_REQUESTS]:
        last = s[at.ANCHOR] + stretch.end_ns(w, s[at.STEP] + num_steps - 1)
        event = w.requests[s[at.NEXT_ROW], at.ARRIVAL_NS]
        if event <= last and policies.can_interrupt(w):
            num_steps = min(num_steps, max(1, stretch.steps_until(w, event - s[at.ANCHOR]) - s[at.STEP]))
    return int(num_steps)


@compiled
def _change_decision(w: World) -> None:
    s = w.counters
    spans.end_span(w, s[at.NOW])
    for i in range(s[at.NUM_PREEMPTED]):
        gaps.preempt(w, w.preempted[i])
        spans.free_slot(w, w.preempted[i], NEVER, s[at.NOW])
        s[at.NUM_PREEMPTIONS] += 1
    for i in range(s[at.NUM_ADMITTED]):
        seq = w.admitted[i]
        if w.requests[seq, at.FIRST_SCHEDULED_NS] == NEVER:
            w.requests[seq, at.FIRST_SCHEDULED_NS] = s[at.NOW]
        if w.requests[seq, at.PREEMPTIONS] == 0:
            s[at.NUM_LOOKED_UP_TOKENS] += pool.num_known(w, seq)
        spans.take_slot(w, seq, s[at.NOW])
    stretch.begin_stretch(w, s[at.NOW])
    spans.open_span(w, s[at.NOW])


@compiled
def _finish(w: World, num_steps: int) -> None:
    """Account for ``num_steps`` steps of the decision that end now."""
    s = w.counters
    num_live, begin = s[at.NUM_DECODING], s[at.STEP]
    policies.finish_step(w, num_steps)
    spans.advance(w, begin, num_steps, num_live)
    if s[at.NUM_DECODES]:
        gaps.decode(w, begin, begin + num_steps)
    s[at.STEP] += num_steps
    for i in range(s[at.NUM_PREFILLS]):
        seq = w.prefills[i, at.PREFILL_ID]
        if w.requests[seq, at.COMPUTED] == pool.num_known(w, seq):
            _complete_prefill(w, seq)
    while heaps.next_finish(w) != NOBODY and w.finishes[0, at.FINISH_CLOCK] <= s[at.CLOCK]:
        seq = w.finishes[0, at.FINISH_ID]
        heaps.take_finish(w)
        _last_token(w, seq)


@compiled
def _complete_prefill(w: World, seq: int) -> None:
    """It gave a token, the first or the next after a preemption."""
    s = w.counters
    s[at.OTHER_TOKENS] -= w.requests[seq, at.COMPUTED]
    pool.start_decoding(w, seq)
    s[at.STANDS] = 0
    if s[at.PARTIAL] == seq:
        s[at.PARTIAL] = NOBODY
    if w.requests[seq, at.FIRST_TOKEN_NS] == NEVER:
        w.requests[seq, at.FIRST_TOKEN_NS] = s[at.NOW]
    gaps.join(w, seq, s[at.NOW])
    w.requests[seq, at.DECODING_NS] = s[at.NOW]
    w.spans[s[at.NUM_SPANS], at.SPAN_NUM_EMITTED_TOKENS] += 1
    heaps.expect_finish(w, seq)


@compiled
def _last_token(w: World, seq: int) -> None:
    s = w.counters
    w.requests[seq, at.LAST_TOKEN_NS] = w.requests[seq, at.END_NS] = s[at.NOW]
    gaps.leave(w, seq)
    pool.stop_decoding(w, seq)
    pool.release(w, seq)
    spans.free_slot(w, seq, s[at.NOW], s[at.NOW])
    s[at.NUM_RECOMPUTED_TOKENS] += w.requests[seq, at.RECOMPUTED]
    s[at.NUM_ENDED] += 1
    s[at.STANDS] = 0
    spans.end_span(w, s[at.NOW])


def _make_run(version: int) -> Callable[[World, int], int]:
    def run(w: World, num_ended: int) -> int:
        return _run(w, num_ended) if version else STALLED  # never 0: it is here to be closed over

    return entry(run)


run = _make_run(sources())
"""Go on until everything is done, ``num_ended`` requests have ended, or a buffer of rows is nearly full."""
