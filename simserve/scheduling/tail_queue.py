"""A queue in which nobody has a claim: preempted sequences stand at its end, and the head need not be served first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from simserve.request import Sequence
from simserve.scheduling.queue import WaitingQueue


class TailQueue(WaitingQueue):
    """First in, first out, whatever a sequence has been through."""

    def __init__(self) -> None:
        super().__init__("fcfs")
        self._places = count()

    def __iter__(self) -> Iterator[Sequence]:
        """Everyone in order; who is taken out meanwhile is passed all the same."""
        return iter(tuple(self._by_id.values()))

    def push(self, seq: Sequence) -> None:
        """Queue a sequence, last."""
        self._put(seq, next(self._places))

    def bring_forward(self, seq: Sequence) -> None:
        """Let a sequence overtake all others: it is the head until it is taken."""
        self.remove(seq)
        self._put(seq, -1)

    def _put(self, seq: Sequence, place: int) -> None:
        heapq.heappush(self._heap, (False, place, 0, seq.id, seq))
        self._by_id[seq.id] = seq
