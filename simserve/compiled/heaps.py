"""Binary heaps in arrays: of plain numbers, and of the finishes to come."""

from __future__ import annotations

from simserve.compiled import at
from simserve.compiled.jit import compiled
from simserve.compiled.world import World
from simserve.request import IntColumn


@compiled
def push(heap: IntColumn, size: int, value: int) -> None:
    """Add ``value`` to the ``size`` smallest-first numbers of ``heap``."""
    i = size
    while i > 0 and heap[(i - 1) // 2] > value:
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = value


@compiled
def pop(heap: IntColumn, size: int) -> int:
    """Take the smallest of ``size`` numbers out."""
    smallest, value = heap[0], heap[size - 1]
    i, size = 0, size - 1
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value
    return int(smallest)


@compiled
def expect_finish(w: World, seq: int) -> None:
    """The sequence has just joined the cohort: it will have its last token when the cohort's clock says so."""
    s = w.counters
    if s[at.NUM_FINISHES] == len(w.finishes):
        _forget_stale(w)
    last = w.requests[seq, at.JOINED_CLOCK] + w.requests[seq, at.NUM_OUTPUT] - w.requests[seq, at.GENERATED]
    _sift_up(w, s[at.NUM_FINISHES], last, w.requests[seq, at.ADMISSION], seq, w.requests[seq, at.JOINED_CLOCK])
    s[at.NUM_FINISHES] += 1


@compiled
def next_finish(w: World) -> int:
    """The sequence that finishes first among those that decode; NOBODY if none does."""
    s = w.counters
    while (
        s[at.NUM_FINISHES]
        and w.finishes[0, at.FINISH_JOINED] != w.requests[w.finishes[0, at.FINISH_ID], at.JOINED_CLOCK]
    ):
        take_finish(w)  # preempted since: another entry stands for it
    return int(w.finishes[0, at.FINISH_ID]) if s[at.NUM_FINISHES] else -1


@compiled
def take_finish(w: World) -> None:
    """Take the first entry out."""
    s = w.counters
    s[at.NUM_FINISHES] -= 1
    size = s[at.NUM_FINISHES]
    clock, admission = w.finishes[size, at.FINISH_CLOCK], w.finishes[size, at.FINISH_ADMISSION]
    seq, joined = w.finishes[size, at.FINISH_ID], w.finishes[size, at.FINISH_JOINED]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _is_before(
            w, child + 1, w.finishes[child, at.FINISH_CLOCK], w.finishes[child, at.FINISH_ADMISSION]
        ):
            child += 1
        if not _is_before(w, child, clock, admission):
            break
        _move(w, child, i)
        i = child
    _put(w, i, clock, admission, seq, joined)


@compiled
def _sift_up(w: World, size: int, clock: int, admission: int, seq: int, joined: int) -> None:
    i = size
    while i > 0 and not _is_before(w, (i - 1) // 2, clock, admission):
        _move(w, (i - 1) // 2, i)
        i = (i - 1) // 2
    _put(w, i, clock, admission, seq, joined)


@compiled
def _forget_stale(w: World) -> None:
    s = w.counters
    size, s[at.NUM_FINISHES] = s[at.NUM_FINISHES], 0
    for i in range(size):
        if w.finishes[i, at.FINISH_JOINED] == w.requests[w.finishes[i, at.FINISH_ID], at.JOINED_CLOCK]:
            clock, admission, seq, joined = (
                w.finishes[i, at.FINISH_CLOCK],
                w.finishes[i, at.FINISH_ADMISSION],
                w.finishes[i, at.FINISH_ID],
                w.finishes[i, at.FINISH_JOINED],
            )
            _sift_up(w, s[at.NUM_FINISHES], clock, admission, seq, joined)
            s[at.NUM_FINISHES] += 1


@compiled
def _is_before(w: World, i: int, clock: int, admission: int) -> bool:
    return bool(
        w.finishes[i, at.FINISH_CLOCK] < clock
        or (w.finishes[i, at.FINISH_CLOCK] == clock and w.finishes[i, at.FINISH_ADMISSION] < admission)
    )


@compiled
def _move(w: World, source: int, target: int) -> None:
    _put(
        w,
        target,
        w.finishes[source, at.FINISH_CLOCK],
        w.finishes[source, at.FINISH_ADMISSION],
        w.finishes[source, at.FINISH_ID],
        w.finishes[source, at.FINISH_JOINED],
    )


@compiled
def _put(w: World, i: int, clock: int, admission: int, seq: int, joined: int) -> None:
    w.finishes[i, at.FINISH_CLOCK], w.finishes[i, at.FINISH_ADMISSION] = clock, admission
    w.finishes[i, at.FINISH_ID], w.finishes[i, at.FINISH_JOINED] = seq, joined
