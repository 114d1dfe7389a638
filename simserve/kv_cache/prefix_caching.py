"""Paged KV cache whose blocks are found again by what they hold (automatic prefix caching, as vLLM v1 does it)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, MutableSequence

import numpy as np

from simserve.kv_cache.free_queue import FreeQueue, grown
from simserve.kv_cache.history import History
from simserve.kv_cache.identities import Identities, Names, names_of
from simserve.kv_cache.paged import PagedAllocator
from simserve.request import IntColumn, LookUp, Sequence

_FEW = 8  # blocks that are cheaper to take one by one


class PrefixCachingAllocator(PagedAllocator):
    """A paged cache that keeps what blocks hold after they are given back, until they are taken for something else.

    Full blocks only. A sequence that is admitted takes the longest run of blocks that begins as it does, all but its
    last token at most, whether others hold them or nobody does. Free blocks are taken in the order of their return, a
    sequence's last ones first (vLLM 0.19); with ``nameless_first`` those that nobody could find go before all others
    (vLLM 0.32).

    Blocks of known content are identified when they are allocated, for the step under way fills them; those of answers
    when they are given back: who could find them is the request itself, or the next turn of its session, and neither
    looks before.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        watermark: float = 0.01,
        null_blocks: int = 0,
        nameless_first: bool = False,
    ) -> None:
        super().__init__(
            num_blocks, block_size, max_model_len=max_model_len, watermark=watermark, null_blocks=null_blocks
        )
        self.shared_tokens = self.cached_free_tokens = self.num_evictions = 0
        self._nameless_first = nameless_first
        self._queue = FreeQueue(null_blocks, num_blocks)
        self._identities = Identities()
        self._history = History(self._identities)
        self._references = np.zeros(64, np.int64)  # of each block: tables that hold it
        self._names: dict[int, Names] = {}  # of those who hold blocks
        self._num_named: dict[int, int] = {}  # blocks of a table, from its start, that are identified
        self._seeker: Sequence | None = None  # who was looked up last
        self._seeker_names = names_of(-1, None, block_size)
        self._hits: IntColumn | None = None  # what it found, while nothing has changed since

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, whatever they still hold."""
        return len(self._queue)

    def num_references(self, block: int) -> int:
        """How many tables hold a block."""
        return int(self._references[block]) if block < len(self._references) else 0

    def free_blocks(self) -> list[int]:
        """The blocks that nobody holds, in the order in which they will be taken."""
        return self._queue.blocks()

    def can_admit(self, seq: Sequence, spare_blocks: int = 0) -> bool:
        """Whether all known tokens fit and the watermark stays free. A hit that somebody holds takes nothing; one that
        is free takes as much as a new block."""
        hits = self._find(seq)
        num_held = int(np.count_nonzero(self._references[hits])) if len(hits) else 0
        need = self._blocks(seq.num_known_tokens) - num_held + spare_blocks
        return need <= self.num_free_blocks - self.watermark_blocks

    def num_cached_tokens(self, seq: Sequence) -> int:
        """What a waiting sequence would find of its known tokens: whole blocks from the start, never the last token."""
        return self.block_size * len(self._find(seq))

    def look_up(self, seq: Sequence) -> LookUp:
        """What a waiting sequence finds of its known tokens, and what it would if nothing was ever evicted."""
        size, num_found = self.block_size, len(self._find(seq))
        stop, num_blocks = (seq.num_known_tokens - 1) // size, (seq.request.num_total_tokens - 1) // size
        num_ever, num_bound = self._history.look_up(self._seeker_names, num_found, stop, num_blocks)
        return LookUp(seq.num_known_tokens, size * num_found, size * (num_ever - num_found), size * num_bound)

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Extend the sequence's table to cover ``num_tokens``; a new one begins with what was found."""
        table = self._tables.get(seq.id)
        if table is None:
            table = self._tables[seq.id] = array("q")
            self._adopt(seq, table)
        num_blocks = -(-num_tokens // self.block_size) - len(table)
        if num_blocks > 0:
            self._take(table, num_blocks)
        names, begin = self._names[seq.id], self._num_named[seq.id]
        num_filled = min(num_tokens, seq.num_known_tokens)  # what is beyond is room for drafts
        end = min(num_filled // self.block_size, len(names.of_content))
        if end > begin:
            self._identities.enter(names, begin, np.array(table[begin:end]))
            self._history.enter(names, end)
            self._num_named[seq.id] = end
            self._hits = None

    def grow(self, num_steps: int) -> None:
        """Hand out the blocks into which growing sequences cross in ``num_steps`` steps, in the order of the steps."""
        if num_steps == 0:
            return
        num_blocks = self.growth_demand(num_steps)
        if num_blocks:
            taken: MutableSequence[int] = array("q")
            self._take(taken, num_blocks)
            cycle = range(min(num_steps, self.block_size))
            phases = ((step, self._phases[-(self._clock + step) % self.block_size]) for step in cycle)
            crossings = [(step, phase) for step, phase in phases if phase]
            blocks = iter(taken)
            for begin in range(0, num_steps, self.block_size):
                for step, phase in crossings:
                    if begin + step < num_steps:
                        for table in phase.values():
                            table.append(next(blocks))
        self._clock += num_steps

    def free(self, seq: Sequence) -> None:
        """Drop the sequence's references; blocks that nobody else holds are free, and found by what they hold."""
        if seq.id in self._phase_of:
            self.stop_growth(seq)
        table = self._tables.pop(seq.id, None)
        if table is None:
            return
        names, begin, blocks = self._names.pop(seq.id), self._num_named.pop(seq.id), np.array(table)
        end = seq.num_computed_tokens // self.block_size
        if end > begin:
            self._identities.enter(names, begin, blocks[begin:end])
            self._history.enter(names, end)
        self._release(blocks[::-1])

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give ``child`` the parent's table: every block is shared until one of them writes into it."""
        table = self._tables[parent.id]
        self._tables[child.id] = table[:]
        self._names[child.id], self._num_named[child.id] = names_of(child.id, None, self.block_size), len(table)
        self._references[np.array(table)] += 1
        self.shared_tokens += self.block_size * len(table)

    def make_writable(self, seq: Sequence, index: int) -> bool:
        """Copy on write: give the sequence a block of its own at ``index`` if that one is shared; True if copied."""
        table = self._tables[seq.id]
        if self._references[table[index]] < 2:
            return False
        copy: MutableSequence[int] = array("q")
        self._take(copy, 1)
        self._release([table[index]])
        table[index] = copy[0]
        return True

    def _find(self, seq: Sequence) -> IntColumn:
        if seq is not self._seeker:
            self._seeker, self._hits = seq, None
            self._seeker_names = names_of(seq.id, seq.request.content, self.block_size)
            self._identities.fit(0, self._seeker_names)
        if self._hits is None:
            self._hits = self._identities.find(self._seeker_names, (seq.num_known_tokens - 1) // self.block_size)
        return self._hits

    def _adopt(self, seq: Sequence, table: MutableSequence[int]) -> None:
        hits = self._find(seq)[: seq.num_computed_tokens // self.block_size]
        self._names[seq.id], self._num_named[seq.id] = self._seeker_names, len(hits)
        if len(hits):
            free = hits[self._references[hits] == 0]
            self._queue.remove(free)
            self._references[hits] += 1
            self.cached_free_tokens -= self.block_size * len(free)
            self.shared_tokens += self.block_size * (len(hits) - len(free))
            table.extend(array("q", hits.tobytes()))
            self._hits = None

    def _take(self, table: MutableSequence[int], num_blocks: int) -> None:
        assert num_blocks <= self.num_free_blocks, "the policy must check before it allocates"
        self._hits = None
        if num_blocks <= _FEW:
            blocks = [self._queue.pop() for _ in range(num_blocks)]
            self._fit()
            num_dropped, references = 0, self._references.data
            for block in blocks:
                num_dropped += self._identities.drop_one(block)
                references[block] = 1
            self._count_evictions(num_dropped)
            table.extend(blocks)
            return
        taken = self._queue.pop_many(num_blocks)
        self._fit()
        self._count_evictions(self._identities.drop(taken))
        self._references[taken] = 1
        table.extend(array("q", taken.tobytes()))

    def _fit(self) -> None:
        if self._queue.num_seen > len(self._references):
            self._references = grown(self._references, self._queue.num_seen, 0)
            self._identities.fit(len(self._references))

    def _count_evictions(self, num_blocks: int) -> None:
        self.num_evictions += num_blocks
        self.cached_free_tokens -= self.block_size * num_blocks

    def _release(self, blocks: Iterable[int]) -> None:
        """Drop one reference to each block, in the order in which they shall be taken again."""
        given = np.asarray(blocks)
        self._references[given] -= 1
        free = given[self._references[given] == 0]
        self.shared_tokens -= self.block_size * (len(given) - len(free))
        named = self._identities.are_named(free)
        self.cached_free_tokens += self.block_size * int(np.count_nonzero(named))
        if self._nameless_first:
            self._queue.prepend(free[~named])
            free = free[named]
        self._queue.append(free)
        self._hits = None
