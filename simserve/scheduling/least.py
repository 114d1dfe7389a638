"""Numbers that come and go, and the least of those that are there."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Least:
    """A multiset of integers: ``add`` costs at most the logarithm of how many there are, so does what it later takes to
    drop the number; ``remove`` and ``value`` cost next to nothing besides.

    Removed numbers stay in the heap until they come up, or are most of it.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []  # the keys of ``_counts``
        self._num_present = 0

    def add(self, number: int) -> None:
        """One more of ``number``."""
        self._num_present += 1
        if number in self._counts:
            self._counts[number] += 1
        else:
            self._counts[number] = 1
            heappush(self._heap, number)

    def remove(self, number: int) -> None:
        """One less of ``number``, which is there."""
        self._num_present -= 1
        self._counts[number] -= 1
        if len(self._heap) > 2 * self._num_present + 64:
            self._counts = {number: count for number, count in self._counts.items() if count}
            self._heap = list(self._counts)
            heapify(self._heap)

    def value(self) -> int | None:
        """The least that is there; None if nothing is."""
        heap, counts = self._heap, self._counts
        while heap and not counts[heap[0]]:
            del counts[heappop(heap)]
        return heap[0] if heap else None
