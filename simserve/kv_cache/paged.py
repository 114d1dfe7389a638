"""Paged KV cache: blocks, block tables, reference counts, watermark (PagedAttention, Kwon et al., SOSP'23; vLLM)."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass

from simserve.kv_cache.allocator import Waste
from simserve.request import LookUp, Request, Sequence


@dataclass(frozen=True)
class SwapSpace:
    """Memory outside the accelerator for preempted sequences: its size in blocks, and the bytes of one block."""

    num_blocks: int
    block_bytes: int


class PagedAllocator:
    """``num_blocks`` blocks of ``block_size`` tokens, of which ``null_blocks`` hold nothing (vLLM keeps one).

    A waiting sequence is admitted only if ``watermark`` (a share of the usable blocks) stays free. Growing sequences
    are kept by phase: all members of one phase cross into a new block at the same step, so the demand of many steps
    follows from the sizes of ``block_size`` groups.
    """

    can_preempt = True
    shared_tokens = 0
    cached_free_tokens = 0
    num_evictions = 0

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        watermark: float = 0.01,
        null_blocks: int = 0,
        swap: SwapSpace | None = None,
    ) -> None:
        self.block_size = block_size
        self.num_usable_blocks = num_blocks - null_blocks
        self.watermark_blocks = int(watermark * self.num_usable_blocks)
        self.capacity_tokens = self.num_usable_blocks * block_size
        self._max_model_len = max_model_len
        self._swap = swap
        self._num_swapped_blocks = 0
        self._swapped: dict[int, int] = {}
        self._free: list[int] = []  # given back
        self._fresh = range(null_blocks, num_blocks)  # never handed out: a list of a large cache would fill memory
        self._tables: dict[int, MutableSequence[int]] = {}
        self._extra_refs: dict[int, int] = {}  # block -> tables that hold it, beyond the first
        self._phases: list[dict[int, MutableSequence[int]]] = [{} for _ in range(block_size)]
        self._phase_of: dict[int, int] = {}
        self._clock = 0

    @property
    def swaps(self) -> bool:
        """Whether preempted sequences may be moved out and back."""
        return self._swap is not None

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free) + len(self._fresh)

    def table(self, seq: Sequence) -> tuple[int, ...]:
        """The sequence's block table: block ids in token order."""
        return tuple(self._tables.get(seq.id, ()))

    def num_references(self, block: int) -> int:
        """How many tables hold a block."""
        held = any(block in table for table in self._tables.values())
        return self._extra_refs.get(block, 0) + held

    def refusal(self, request: Request) -> str | None:
        """Why this request can never be held, even alone."""
        need = self._blocks(request.num_total_tokens) + self.watermark_blocks
        if need <= self.num_usable_blocks:
            return None
        return (
            f"prompt + output of {request.num_total_tokens} tokens need {need} blocks of {self.block_size} "
            f"(watermark included) and the cache has {self.num_usable_blocks}"
        )

    def declared_tokens(self, request: Request) -> int:
        """Prompt and declared maximum, in whole blocks."""
        declared = min(request.num_prompt_tokens + request.max_output_tokens, self._max_model_len)
        return self.block_size * self._blocks(declared)

    def admissible_tokens(self) -> int:
        """An empty cache less its watermark."""
        return self.block_size * (self.num_usable_blocks - self.watermark_blocks)

    def can_admit(self, seq: Sequence, spare_blocks: int = 0) -> bool:
        """Whether all known tokens fit and the watermark stays free."""
        return self._blocks(seq.num_known_tokens) + spare_blocks <= self.num_free_blocks - self.watermark_blocks

    def num_cached_tokens(self, seq: Sequence) -> int:
        """Nothing is found: a block that is given back is empty."""
        return 0

    def look_up(self, seq: Sequence) -> LookUp | None:
        """There is nothing to look for."""
        return None

    def blocks_to_reach(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks that the sequence lacks for ``num_tokens``."""
        return max(0, self._blocks(num_tokens) - len(self._tables.get(seq.id, ())))

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Extend the sequence's table to cover ``num_tokens``."""
        table = self._tables.setdefault(seq.id, [])
        self._take(table, self._blocks(num_tokens) - len(table))

    def shrink(self, seq: Sequence, num_tokens: int) -> None:
        """Give back the blocks beyond those that ``num_tokens`` need, the last one first."""
        table, kept = self._tables[seq.id], self._blocks(num_tokens)
        if kept < len(table):
            self._release(table[kept:][::-1])
            del table[kept:]

    def start_growth(self, seq: Sequence, num_tokens: int) -> None:
        """The sequence, with room for ``num_tokens`` in its table, joins the growing ones."""
        phase = (num_tokens - self._clock) % self.block_size
        self._phases[phase][seq.id] = self._tables[seq.id]
        self._phase_of[seq.id] = phase

    def stop_growth(self, seq: Sequence) -> None:
        """The sequence leaves the growing ones."""
        del self._phases[self._phase_of.pop(seq.id)][seq.id]

    def growth_demand(self, num_steps: int) -> int:
        """Blocks that growing takes in ``num_steps`` steps: each sequence one per ``block_size`` steps, by phase."""
        if num_steps == 1:
            return len(self._phases[-self._clock % self.block_size])
        cycles, rest = divmod(num_steps, self.block_size)
        demand = cycles * len(self._phase_of)
        for step in range(rest):
            demand += len(self._phases[-(self._clock + step) % self.block_size])
        return demand

    def growth_limit(self, max_steps: int) -> int:
        """The largest n ≤ ``max_steps`` whose demand the free blocks cover."""
        num_growing, free = len(self._phase_of), self.num_free_blocks
        if num_growing * (max_steps // self.block_size + 1) <= free:
            return max_steps
        cycles, free = divmod(free, num_growing)
        steps = cycles * self.block_size
        while steps < max_steps:
            free -= len(self._phases[-(self._clock + steps) % self.block_size])
            if free < 0:
                break
            steps += 1
        return min(steps, max_steps)

    def grow(self, num_steps: int) -> None:
        """Hand out the blocks into which growing sequences cross in ``num_steps`` steps."""
        for step in range(min(num_steps, self.block_size)):
            crossing = self._phases[-(self._clock + step) % self.block_size]
            num_blocks = (num_steps - 1 - step) // self.block_size + 1
            for table in crossing.values():
                self._take(table, num_blocks)
        self._clock += num_steps

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give ``child`` the parent's table: every block is shared until one of them writes into it."""
        self._tables[child.id] = list(self._tables[parent.id])
        for block in self._tables[child.id]:
            self._extra_refs[block] = self._extra_refs.get(block, 0) + 1

    def make_writable(self, seq: Sequence, index: int) -> bool:
        """Copy on write: give the sequence a block of its own at ``index`` if that one is shared; True if copied."""
        table = self._tables[seq.id]
        if not self._extra_refs.get(table[index]):
            return False
        self._release([table[index]])
        copy: list[int] = []
        self._take(copy, 1)
        table[index] = copy[0]
        return True

    def free(self, seq: Sequence) -> None:
        """Drop the sequence's references; blocks that nobody else holds become free."""
        if seq.id in self._phase_of:
            self.stop_growth(seq)
        self._release(self._tables.pop(seq.id, []))

    def swap_out(self, seq: Sequence) -> int:
        """Move the blocks to swap space; the bytes moved, 0 if it has no room."""
        num_blocks = len(self._tables[seq.id])
        if self._swap is None or self._num_swapped_blocks + num_blocks > self._swap.num_blocks:
            return 0
        self.free(seq)
        self._swapped[seq.id] = num_blocks
        self._num_swapped_blocks += num_blocks
        return num_blocks * self._swap.block_bytes

    def swap_in(self, seq: Sequence, num_tokens: int) -> int:
        """Bring the blocks back, with room for ``num_tokens``; the bytes moved."""
        assert self._swap is not None
        num_blocks = self._swapped[seq.id]
        self.drop_swapped(seq)
        self.allocate(seq, num_tokens)
        return num_blocks * self._swap.block_bytes

    def drop_swapped(self, seq: Sequence) -> None:
        """Give up the blocks in swap space."""
        self._num_swapped_blocks -= self._swapped.pop(seq.id)

    def waste(self, used_tokens: int, coming_tokens: int) -> Waste:
        """Nothing is reserved beyond the step under way; the tails of last blocks are internal fragmentation."""
        held = self.block_size * (self.num_usable_blocks - self.num_free_blocks)
        return Waste(coming_tokens, held - used_tokens - coming_tokens)

    def unusable_tokens(self, head: Request | None) -> int:
        """No external fragmentation: any free block serves any sequence."""
        return 0

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _take(self, table: MutableSequence[int], num_blocks: int) -> None:
        if num_blocks == 1 and self._free:
            table.append(self._free.pop())
        elif num_blocks > 0:
            assert num_blocks <= self.num_free_blocks, "the policy must check before it allocates"
            kept = max(0, len(self._free) - num_blocks)
            num_fresh = num_blocks - len(self._free) + kept
            table.extend(self._free[kept:])
            table.extend(self._fresh[:num_fresh])
            del self._free[kept:]
            self._fresh = self._fresh[num_fresh:]

    def _release(self, blocks: Iterable[int]) -> None:
        if not self._extra_refs:
            self._free.extend(blocks)
            return
        for block in blocks:
            refs = self._extra_refs.pop(block, 0)
            if refs == 0:
                self._free.append(block)
            elif refs > 1:
                self._extra_refs[block] = refs - 1
