"""A policy under observation: it decides as the one inside does, and what it was asked and answered is kept."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from simserve.kv_cache import ContiguousAllocator, NoCache, PagedAllocator, PrefixCachingAllocator
from simserve.request import Batch, Sequence
from simserve.scheduling import Scheduler


class Memory(NamedTuple):
    """Who held which blocks after a decision, and the free ones in the order in which they would be taken."""

    now_ns: int
    tables: dict[int, list[int]]
    queue: list[int]


class WatchedScheduler:
    """Wraps a scheduler; after each decision it checks memory against the sequences that were ever admitted."""

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner
        self.pool = inner.pool
        self.batches: list[Batch] = []
        self.steady: list[int] = []  # what ``steady_steps(batch, 100)`` said at each decision
        self.finished_after: set[int] = set()  # indexes of decisions after which a sequence had its last token
        self.idle_times_ns: list[int] = []
        self.seen: dict[int, Sequence] = {}
        self.memories: list[Memory] = []  # of a cache that is searched for beginnings, after each decision to run
        self.complaints: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def schedule(self, now_ns: int, more_coming: bool):
        decision = self._inner.schedule(now_ns, more_coming)
        if isinstance(decision, Batch):
            self.batches.append(decision)
            self.steady.append(self._inner.steady_steps(decision, 100))
            self.seen |= {seq.id: seq for seq in decision.admitted}
            allocator = self.pool.allocator
            if isinstance(allocator, PrefixCachingAllocator):
                tables = {i: blocks for i, blocks in self.held_now().items() if blocks}
                self.memories.append(Memory(now_ns, tables, allocator.free_blocks()))
        else:
            self.idle_times_ns.append(now_ns)
        self._look_at_memory(now_ns)
        return decision

    def finish(self, seq: Sequence) -> list[Sequence]:
        self.finished_after.add(len(self.batches) - 1)
        return self._inner.finish(seq)

    def abort(self, seq: Sequence) -> list[Sequence]:
        waits = seq in self.pool.waiting
        if not waits:
            self.finished_after.add(len(self.batches) - 1)
        released = self._inner.abort(seq)
        if any(self._holds(gone) for gone in [*released, *([seq] if waits else [])]):
            self.complaints.append(f"request {seq.id} was given up and still holds memory")
        return released

    def held_now(self) -> dict[int, list[int]]:
        """Block ids (contiguous: addresses) that each sequence ever admitted holds."""
        allocator = self.pool.allocator
        if isinstance(allocator, NoCache):
            return {i: [] for i in self.seen}
        if isinstance(allocator, PagedAllocator):
            return {i: list(allocator.table(seq)) for i, seq in self.seen.items()}
        assert isinstance(allocator, ContiguousAllocator)
        ranges = {i: allocator.range_of(seq) for i, seq in self.seen.items()}
        return {i: list(range(r[0], r[0] + r[1])) if r else [] for i, r in ranges.items()}

    def _holds(self, seq: Sequence) -> bool:
        return self.seen.get(seq.id) is seq and bool(self.held_now()[seq.id])

    def assert_memory_adds_up(self) -> None:
        assert not self.complaints, self.complaints[0]

    def _look_at_memory(self, now_ns: int) -> None:
        allocator = self.pool.allocator
        paged = isinstance(allocator, PagedAllocator)
        total = allocator.num_usable_blocks if paged else allocator.capacity_tokens
        tables = Counter(block for blocks in self.held_now().values() for block in blocks)
        for block, count in tables.items():
            if count != (allocator.num_references(block) if paged else 1):
                self.complaints.append(f"at {now_ns} ns block {block} stands in {count} tables, and not because it may")
        if len(tables) + allocator.num_free_blocks != total:
            self.complaints.append(f"at {now_ns} ns held {len(tables)} + free {allocator.num_free_blocks} ≠ {total}")
