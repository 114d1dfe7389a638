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

    ``fcfs`` goes by arrival (ids are numbered so), ``priority`` by the request's priority (lower first), and
    ``shortest_job_oracle`` by the true output length, which no real server knows.
    """

    def __init__(self, order: QueueOrder) -> None:
        self._order = order
        self._heap: list[tuple[bool, int, int, Sequence]] = []
        self._by_id: dict[int, Sequence] = {}  # in the order in which they were pushed

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, seq: Sequence) -> None:
        """Queue a sequence; one that was preempted goes before all that were not."""
        fresh = seq.num_preemptions == 0
        heapq.heappush(self._heap, (fresh, self._key(seq.request), seq.id, seq))
        self._by_id[seq.id] = seq

    def head(self) -> Sequence:
        """The next to be served."""
        return self._heap[0][3]

    def pop(self) -> Sequence:
        """Take the head out."""
        seq = heapq.heappop(self._heap)[3]
        del self._by_id[seq.id]
        return seq

    def newest(self, count: int) -> Iterator[Sequence]:
        """The ``count`` sequences pushed last, the latest first."""
        return islice(reversed(self._by_id.values()), count)

    def would_lead(self, request: Request) -> bool:
        """Whether a new arrival would become the head."""
        return not self._heap or (True, self._key(request), request.id) < self._heap[0][:3]

    def _key(self, request: Request) -> int:
        if self._order == "priority":
            return request.priority
        return request.num_output_tokens if self._order == "shortest_job_oracle" else 0
