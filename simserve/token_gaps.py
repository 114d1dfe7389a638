"""Inter-token latencies of everyone, counted without visiting each token."""

from __future__ import annotations

from simserve.records import Records, itl_bin
from simserve.request import Sequence
from simserve.step_time.stretch import NS_PER_S, Ramp, Stretch


class TokenGaps:
    """Sequences that decode emit at the same instants, so they fall into few groups by the time of their last token.

    The first step of a stretch closes each group's gap and merges them; every later gap is a step's own duration, the
    same for all, and lies on a ramp: one weighted add per ramp whose two ends share a bin.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._main_ns = 0  # last token of the merged group
        self._num_main = 0
        self._joined: dict[int, int] = {}  # request id -> last token, of those that joined after the last decode step
        self._preempted: dict[int, int] = {}  # request id -> last token before it was preempted

    def join(self, seq: Sequence, now_ns: int) -> None:
        """A prefill emitted a token at ``now_ns``: the first, or the next one after a preemption."""
        last_ns = self._preempted.pop(seq.id, None)
        if last_ns is not None:
            self._add((now_ns - last_ns) / NS_PER_S, 1)
            self._records.itl_sum_ns += now_ns - last_ns
        self._joined[seq.id] = now_ns

    def resume(self, seq: Sequence) -> None:
        """A swapped sequence decodes again; its gap is still open."""
        self._joined[seq.id] = self._preempted.pop(seq.id)

    def leave(self, seq: Sequence) -> None:
        """The sequence has its last token."""
        if self._joined.pop(seq.id, None) is None:
            self._num_main -= 1

    def drop(self, seq: Sequence) -> None:
        """The sequence, waiting or running, is given up; its open gap is never closed."""
        if seq.num_generated_tokens and self._preempted.pop(seq.id, None) is None:
            self.leave(seq)

    def preempt(self, seq: Sequence) -> None:
        """The sequence is preempted: its gap stays open until it emits again."""
        if seq.num_generated_tokens == 0:
            return
        last_ns = self._joined.pop(seq.id, None)
        if last_ns is None:
            if seq.id in self._preempted:  # preempted again before it could emit
                return
            last_ns = self._main_ns
            self._num_main -= 1
        self._preempted[seq.id] = last_ns

    def decode(self, stretch: Stretch, anchor_ns: int, begin: int, end: int) -> None:
        """Steps ``begin`` to ``end`` (from 0, half open) of a stretch emitted one token for each sequence."""
        if begin == 0:
            self._close(anchor_ns + stretch.end_ns(1))
            begin = 1
        end_ns = anchor_ns + stretch.end_ns(end)
        self._records.itl_sum_ns += self._num_main * (end_ns - anchor_ns - stretch.end_ns(begin)) if end > begin else 0
        self._main_ns = end_ns
        for ramp, first, stop in stretch.pieces(begin, end):
            self._add_ramp(ramp, first, stop)

    def _close(self, now_ns: int) -> None:
        """Everyone emits at ``now_ns``, the end of a stretch's first step: close the open gaps and merge the groups."""
        if self._num_main:
            self._add((now_ns - self._main_ns) / NS_PER_S, self._num_main)
        for last_ns in self._joined.values():
            self._add((now_ns - last_ns) / NS_PER_S, 1)
        open_ns = self._num_main * self._main_ns + sum(self._joined.values())
        self._records.itl_sum_ns += (self._num_main + len(self._joined)) * now_ns - open_ns
        self._num_main += len(self._joined)
        self._joined.clear()

    def _add_ramp(self, ramp: Ramp, first: int, stop: int) -> None:
        """The gaps ``ramp.at(first)`` to ``ramp.at(stop - 1)``, halved until the ends of each part share a bin."""
        first_s, last_s = ramp.at(first), ramp.at(stop - 1)
        if itl_bin(first_s) == itl_bin(last_s):
            self._add(max(first_s, last_s), self._num_main * (stop - first))
            return
        half = (first + stop) // 2
        self._add_ramp(ramp, first, half)
        self._add_ramp(ramp, half, stop)

    def _add(self, gap_s: float, weight: int) -> None:
        self._records.itl_counts[itl_bin(gap_s)] += weight
        self._records.itl_max_s = max(self._records.itl_max_s, gap_s)
