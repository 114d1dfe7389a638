"""The waiting queue: who is served next."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from simserve.request import Request, Sequence

QueueOrder = Literal["fcfs", "priority", "shortest_job_oracle"]


class WaitingQueue:
    """Waiting sequences in order; preempted ones stand before all others, and the head blocks the rest.

    ``fcfs`` goes by arrival, ``priority`` by the request's priority (lower first), and ``shortest_job_oracle`` by the
    true output length, which no real server knows; ties by arrival.
    """

    def __init__(self, order: QueueOrder) -> None:
        self.order = order
        self._heap: list[tuple[bool, int, int, int, Sequence]] = []  # may hold removed ones, but never in front
        self._by_id: dict[int, Sequence] = {}  # in the order in which they were pushed

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, seq: Sequence) -> bool:
        return self._by_id.get(seq.id) is seq

    def push(self, seq: Sequence) -> None:
        """Queue a sequence; one that was preempted goes before all that were not."""
        fresh = seq.num_preemptions == 0
        heapq.heappush(self._heap, (fresh, self._key(seq.request), seq.arrival_ns, seq.id, seq))
        self._by_id[seq.id] = seq

    def head(self) -> Sequence:
        """The next to be served."""
        return self._heap[0][4]

    def pop(self) -> Sequence:
        """Take the head out."""
        seq = heapq.heappop(self._heap)[4]
        del self._by_id[seq.id]
        self._skip_removed()
        return seq

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out from wherever it stands."""
        del self._by_id[seq.id]
        self._skip_removed()
        if len(self._heap) > 2 * len(self._by_id) + 64:  # as many have left as wait: memory must not keep them
            self._heap = [entry for entry in self._heap if entry[4] in self]
            heapq.heapify(self._heap)

    def newest(self, count: int) -> Iterator[Sequence]:
        """The ``count`` sequences pushed last, the latest first."""
        return islice(reversed(self._by_id.values()), count)

    def would_lead(self, request: Request) -> bool:
        """Whether a new arrival would become the head."""
        return not self._heap or (True, self._key(request), request.arrival_ns, request.id) < self._heap[0][:4]

    def _skip_removed(self) -> None:
        while len(self._heap) > len(self._by_id) and self._heap[0][4] not in self:
            heapq.heappop(self._heap)

    def _key(self, request: Request) -> int:
        if self.order == "priority":
            return request.priority
        return request.num_output_tokens if self.order == "shortest_job_oracle" else 0
