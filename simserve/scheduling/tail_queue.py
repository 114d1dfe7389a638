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
        self._lengths: list[tuple[int, int, Sequence]] = []  # a heap; may hold removed ones

    def __iter__(self) -> Iterator[Sequence]:
        """Everyone in order; nobody may come or go meanwhile."""
        return iter(self._by_id.values())

    @property
    def shortest(self) -> int:
        """The fewest tokens that anybody has to compute; 0 if nobody waits."""
        lengths = self._lengths
        while lengths and not self._stands(lengths[0]):
            heapq.heappop(lengths)
        return lengths[0][0] if lengths else 0

    def push(self, seq: Sequence) -> None:
        """Queue a sequence, last."""
        self._put(seq, next(self._places))
        heapq.heappush(self._lengths, (seq.num_known_tokens, next(self._places), seq))
        if len(self._lengths) > 2 * len(self._by_id) + 64:  # as many are gone as wait: memory must not keep them
            self._lengths = [entry for entry in self._lengths if self._stands(entry)]
            heapq.heapify(self._lengths)

    def bring_forward(self, seq: Sequence) -> None:
        """Let a sequence overtake all others: it is the head until it is taken."""
        self.remove(seq)
        self._put(seq, -1)

    def _stands(self, entry: tuple[int, int, Sequence]) -> bool:
        length, _, seq = entry
        return seq in self and seq.num_known_tokens == length

    def _put(self, seq: Sequence, place: int) -> None:
        heapq.heappush(self._heap, (False, place, 0, seq.id, seq))
        self._by_id[seq.id] = seq
