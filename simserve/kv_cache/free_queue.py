"""Free blocks in the order in which they are taken: those that were given back longest ago first."""

from __future__ import annotations

import numpy as np

from simserve.request import IntColumn

_HELD = -1


class FreeQueue:
    """Blocks ``first`` to ``stop``, all free at first, taken in order of their numbers and then of their return.

    A free block may also be taken out of the middle. Returned blocks stand in a log, and each block knows its place
    there: an entry whose block stands elsewhere is passed over, so any number of blocks comes and goes as one slice. A
    cache of any size is made at once, as only blocks that were handed out before are listed.
    """

    def __init__(self, first: int, stop: int) -> None:
        self._fresh, self._stop = first, stop  # never handed out: from the one to the other
        self._front: list[int] = []  # to be taken before all others, the last one first
        self._log = np.zeros(64, np.int64)
        self._begin = self._end = 0  # of what the log may still hold
        self._num_logged = 0
        self._place = np.full(64, _HELD, np.int64)  # in the log, of each block

    def __len__(self) -> int:
        return len(self._front) + self._stop - self._fresh + self._num_logged

    @property
    def num_seen(self) -> int:
        """One more than the highest number that was ever handed out."""
        return self._fresh

    def pop(self) -> int:
        """Take the first block."""
        if self._front:
            return self._front.pop()
        if self._fresh < self._stop:
            self._fresh += 1
            return self._fresh - 1
        log, place = self._log.data, self._place.data
        while place[log[self._begin]] != self._begin:
            self._begin += 1
        block: int = log[self._begin]
        place[block] = _HELD
        self._begin += 1
        self._num_logged -= 1
        return block

    def pop_many(self, count: int) -> IntColumn:
        """Take the first ``count`` blocks; as many must be free."""
        if count and self._fresh == self._stop and not self._front:
            return self._pop_logged(count)
        num_front = min(count, len(self._front))
        num_fresh = min(count - num_front, self._stop - self._fresh)
        fresh = np.arange(self._fresh, self._fresh + num_fresh)
        self._fresh += num_fresh
        parts = [fresh]
        if num_front:
            parts.insert(0, np.array(self._front[: -num_front - 1 : -1], np.int64))
            del self._front[-num_front:]
        if num_front + num_fresh < count:
            parts.append(self._pop_logged(count - num_front - num_fresh))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def append(self, blocks: IntColumn) -> None:
        """Give blocks back, to be taken after all others, in this order."""
        if self._end + len(blocks) > len(self._log):
            self._compact(len(blocks))
        if self._fresh > len(self._place):
            self._place = grown(self._place, self._fresh, _HELD)
        begin, self._end = self._end, self._end + len(blocks)
        self._log[begin : self._end] = blocks
        self._place[blocks] = np.arange(begin, self._end)
        self._num_logged += len(blocks)

    def prepend(self, blocks: IntColumn) -> None:
        """Give blocks back, to be taken before all others, in this order."""
        self._front.extend(blocks[::-1].tolist())

    def remove(self, blocks: IntColumn) -> None:
        """Take these blocks, which were appended, out of wherever they stand."""
        self._place[blocks] = _HELD
        self._num_logged -= len(blocks)

    def blocks(self) -> list[int]:
        """All free blocks in order."""
        return [*reversed(self._front), *range(self._fresh, self._stop), *self._logged().tolist()]

    def _pop_logged(self, count: int) -> IntColumn:
        window = self._log[self._begin : self._end]
        if self._num_logged < len(window):
            width = count + 64  # most entries stand, and more are looked at only where they do not
            while True:
                window = self._log[self._begin : min(self._begin + width, self._end)]
                standing = np.flatnonzero(self._place[window] == np.arange(self._begin, self._begin + len(window)))
                if len(standing) >= count:
                    break
                width *= 2
            taken = window[standing[:count]]
            self._begin += int(standing[count - 1]) + 1
        else:
            taken = window[:count].copy()
            self._begin += count
        self._place[taken] = _HELD
        self._num_logged -= count
        return taken

    def _logged(self) -> IntColumn:
        window = self._log[self._begin : self._end]
        standing: IntColumn = window[self._place[window] == np.arange(self._begin, self._end)]
        return standing

    def _compact(self, room: int) -> None:
        """Drop the entries that no longer stand; the log is at most half full afterwards, with ``room`` for more."""
        logged = self._logged()
        self._log = np.zeros(2 * (len(logged) + room), np.int64)
        self._begin, self._end = 0, len(logged)
        self._log[: self._end] = logged
        self._place[logged] = np.arange(self._end)


def grown(column: IntColumn, size: int, fill: int) -> IntColumn:
    """A copy of at least ``size`` and at least twice as many entries, the new ones ``fill``."""
    size = max(size, 2 * len(column))
    longer = np.full(size, fill, np.int64) if fill else np.zeros(size, np.int64)  # zeros cost nothing until written
    longer[: len(column)] = column
    return longer
