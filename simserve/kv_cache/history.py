"""What a prefix cache has ever held and was ever asked for: how much of what is not found was lost, and how much of it
a cache that forgets nothing would have.

Whatever a request has at a place it has at every place before, so each answer is the end of a run, found by halving.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from simserve.kv_cache.free_queue import grown
from simserve.kv_cache.identities import NAMELESS, Identities, Names


class History:
    """By identity, of content and of requests' own places; nothing is ever forgotten."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities  # its index is never cleaned
        self._asked: npt.NDArray[np.bool_] = np.zeros(64, np.bool_)  # of each content: it was in a look-up
        self._num_own = np.zeros(64, np.int64)  # of each request: places of its own, from the first, that were entered

    def enter(self, names: Names, num_blocks: int) -> None:
        """So many of a request's first blocks have been entered."""
        num_own = num_blocks - len(names.of_content)
        if num_own > 0:
            if names.request_id >= len(self._num_own):
                self._num_own = grown(self._num_own, names.request_id + 1, 0)
            self._num_own[names.request_id] = max(num_own, self._num_own[names.request_id])

    def look_up(self, names: Names, begin: int, stop: int, num_blocks: int) -> tuple[int, int]:
        """Of the request's first ``stop`` blocks, of which ``begin`` are found, the length of the longest run that was
        ever entered, and of the longest that was entered or that earlier look-ups asked for. Counts as a look-up of
        ``num_blocks``, what the request will have filled when its answer is complete."""
        known, index = names.of_content, self._identities.ever_found
        if len(index) > len(self._asked):
            self._asked = np.append(self._asked, np.zeros(len(index) - len(self._asked), np.bool_))
        num_known, where, is_asked = min(stop, len(known)), index.data, self._asked.data
        begin = min(begin, num_known)
        entered = bisect_left(known.data, True, begin, num_known, key=lambda identity: where[identity] == NAMELESS)
        asked = entered  # in most cases: what was asked for has been computed since
        if entered < num_known and is_asked[known[entered]]:
            asked = bisect_left(known.data, True, entered, num_known, key=lambda identity: not is_asked[identity])
        self._asked[known[asked:num_blocks]] = True
        num_own = 0  # what it has of its own stands behind all that is known of it
        if entered == len(known) < stop and names.request_id < len(self._num_own):
            num_own = min(stop - entered, int(self._num_own[names.request_id]))
        return entered + num_own, asked + num_own
