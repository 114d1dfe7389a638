"""Inter-token latencies, as ``TokenGaps`` counts them."""

from __future__ import annotations

import math

from simserve.compiled import at, stretch
from simserve.compiled.jit import compiled
from simserve.compiled.world import NEVER, World
from simserve.records import ITL_BINS_PER_DECADE, ITL_FLOOR_S

_SCALE = ITL_BINS_PER_DECADE / math.log(10)
_NS_PER_S = 1_000_000_000


@compiled
def join(w: World, seq: int, now: int) -> None:
    """A prefill emitted a token now: the first, or the next one after a preemption."""
    s = w.counters
    last = w.requests[seq, at.OPEN_GAP_NS]
    if last != NEVER:
        _add(w, (now - last) / _NS_PER_S, 1)
        s[at.ITL_SUM_NS] += now - last
        w.requests[seq, at.OPEN_GAP_NS] = NEVER
    w.requests[seq, at.JOINED_AT] = s[at.NUM_JOINED]
    w.joined[s[at.NUM_JOINED], at.JOINED_ID], w.joined[s[at.NUM_JOINED], at.JOINED_LAST_NS] = seq, now
    s[at.NUM_JOINED] += 1


@compiled
def leave(w: World, seq: int) -> None:
    """The sequence has its last token."""
    if _unjoin(w, seq) == NEVER:
        w.counters[at.NUM_MAIN] -= 1


@compiled
def preempt(w: World, seq: int) -> None:
    """The sequence is preempted: its gap stays open until it emits again."""
    s = w.counters
    if w.requests[seq, at.GENERATED] == 0:
        return
    last = _unjoin(w, seq)
    if last == NEVER:
        if w.requests[seq, at.OPEN_GAP_NS] != NEVER:  # preempted again before it could emit
            return
        last = s[at.MAIN_NS]
        s[at.NUM_MAIN] -= 1
    w.requests[seq, at.OPEN_GAP_NS] = last


@compiled
def decode(w: World, begin: int, end: int) -> None:
    """Steps ``begin`` to ``end`` (from 0, half open) of the stretch emitted one token for each sequence."""
    s = w.counters
    if begin == 0:
        _close(w, s[at.ANCHOR] + stretch.end_ns(w, 1))
        begin = 1
    now = s[at.ANCHOR] + stretch.end_ns(w, end)
    if end > begin:
        s[at.ITL_SUM_NS] += s[at.NUM_MAIN] * (now - s[at.ANCHOR] - stretch.end_ns(w, begin))
    s[at.MAIN_NS] = now
    i = stretch.find(w, begin + 1)
    while begin < end:
        if i == s[at.NUM_RAMPS]:
            stretch.extend(w)
        start = w.ramps[i, at.RAMP_START]
        stop = min(end, start + w.ramps[i, at.RAMP_STEPS])
        _add_ramp(w, i, begin - start, stop - start)
        begin, i = stop, i + 1


@compiled
def _close(w: World, now: int) -> None:
    """Everyone emits now, at the end of a stretch's first step."""
    s = w.counters
    if s[at.NUM_MAIN]:
        _add(w, (now - s[at.MAIN_NS]) / _NS_PER_S, s[at.NUM_MAIN])
    open_ns = s[at.NUM_MAIN] * s[at.MAIN_NS]
    for i in range(s[at.NUM_JOINED]):
        _add(w, (now - w.joined[i, at.JOINED_LAST_NS]) / _NS_PER_S, 1)
        open_ns += w.joined[i, at.JOINED_LAST_NS]
        w.requests[w.joined[i, at.JOINED_ID], at.JOINED_AT] = NEVER
    s[at.ITL_SUM_NS] += (s[at.NUM_MAIN] + s[at.NUM_JOINED]) * now - open_ns
    s[at.NUM_MAIN] += s[at.NUM_JOINED]
    s[at.NUM_JOINED] = 0


@compiled
def _add_ramp(w: World, ramp: int, first: int, stop: int) -> None:
    """The gaps of steps ``first`` to ``stop`` of a ramp, as many at once as share a bin."""
    first_s, slope_s, weight = (
        w.ramps_s[ramp, at.RAMP_FIRST_S],
        w.ramps_s[ramp, at.RAMP_SLOPE_S],
        w.counters[at.NUM_MAIN],
    )
    while first < stop:
        here = itl_bin(first_s + slope_s * first)
        low, high = first, stop - 1  # the last step whose gap shares the first one's bin lies between
        if itl_bin(first_s + slope_s * high) != here:
            while high - low > 1:
                middle = (low + high) // 2
                if itl_bin(first_s + slope_s * middle) == here:
                    low = middle
                else:
                    high = middle
            high = low
        _add(w, max(first_s + slope_s * first, first_s + slope_s * high), weight * (high + 1 - first))
        first = high + 1


@compiled
def _add(w: World, gap_s: float, weight: int) -> None:
    w.itl_counts[itl_bin(gap_s)] += weight
    w.costs[at.ITL_MAX_S] = max(w.costs[at.ITL_MAX_S], gap_s)


@compiled
def itl_bin(gap_s: float) -> int:
    """``records.itl_bin``."""
    if gap_s <= ITL_FLOOR_S:
        return 0
    return min(12 * ITL_BINS_PER_DECADE - 1, int(_SCALE * math.log(gap_s / ITL_FLOOR_S)))


@compiled
def _unjoin(w: World, seq: int) -> int:
    """When it emitted, if that was since the last decode step, and forget it there; NEVER otherwise."""
    s, i = w.counters, w.requests[seq, at.JOINED_AT]
    if i == NEVER:
        return NEVER
    last = w.joined[i, at.JOINED_LAST_NS]
    s[at.NUM_JOINED] -= 1
    moved = w.joined[s[at.NUM_JOINED], at.JOINED_ID]
    w.joined[i, at.JOINED_ID], w.joined[i, at.JOINED_LAST_NS] = moved, w.joined[s[at.NUM_JOINED], at.JOINED_LAST_NS]
    w.requests[moved, at.JOINED_AT] = i
    w.requests[seq, at.JOINED_AT] = NEVER
    return int(last)
