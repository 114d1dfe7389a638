"""Model tests: each allocator against the most naive picture of its memory, under any order of operations."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simserve.kv_cache import ContiguousAllocator, PagedAllocator, SwapSpace
from simserve.request import Request, Sequence
from tests.reference_cache import CellRow

BLOCK_BYTES = 4096
small = st.integers(1, 20)


def sequence(seq_id: int, num_prompt_tokens: int, num_output_tokens: int = 1, extra: int = 0) -> Sequence:
    return Sequence(Request(seq_id, 0, num_prompt_tokens, num_output_tokens, num_output_tokens + extra))


class PagedMachine(RuleBasedStateMachine):
    """INV-2 for ``PagedAllocator``. The model: for each sequence its tokens; tables as the allocator shows them."""

    @initialize(
        block_size=st.integers(1, 5),
        num_usable=st.integers(1, 16),
        null_blocks=st.integers(0, 2),
        watermark=st.sampled_from([0.0, 0.01, 0.25]),
        swap_blocks=st.integers(0, 8),
    )
    def build(self, block_size, num_usable, null_blocks, watermark, swap_blocks):
        self.block_size, self.num_usable, self.null_blocks = block_size, num_usable, null_blocks
        self.watermark_blocks, self.swap_blocks = int(watermark * num_usable), swap_blocks
        self.real = PagedAllocator(
            num_usable + null_blocks,
            block_size,
            max_model_len=1000,
            watermark=watermark,
            null_blocks=null_blocks,
            swap=SwapSpace(swap_blocks, BLOCK_BYTES),
        )
        self.tokens: dict[int, int] = {}  # sequence -> tokens its table has room for
        self.seqs: dict[int, Sequence] = {}
        self.growing: set[int] = set()
        self.swapped: dict[int, int] = {}  # sequence -> tokens
        self.next_id = 0

    def blocks(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.block_size)

    def held_blocks(self) -> list[int]:
        return [block for i in self.tokens for block in self.real.table(self.seqs[i])]

    def num_free(self) -> int:
        return self.num_usable - len(set(self.held_blocks()))

    def demand(self, num_steps: int) -> int:
        return sum(self.blocks(self.tokens[i] + num_steps) - self.blocks(self.tokens[i]) for i in self.growing)

    def pick(self, data: st.DataObject, ids) -> int:
        return data.draw(st.sampled_from(sorted(ids)), label="sequence")

    @rule(num_tokens=small, room=small)
    def admit(self, num_tokens, room):
        """A waiting sequence is admitted iff all its known tokens fit over the watermark."""
        seq = sequence(self.next_id, num_tokens)
        assert self.real.can_admit(seq) == (self.blocks(num_tokens) <= self.num_free() - self.watermark_blocks)
        if not self.real.can_admit(seq):
            return
        room = min(room, num_tokens)  # a first chunk of the prompt
        assert self.real.blocks_to_reach(seq, room) == self.blocks(room)
        self.real.allocate(seq, room)
        self.seqs[seq.id], self.tokens[seq.id] = seq, room
        self.next_id += 1

    @precondition(lambda self: set(self.tokens) - self.growing)
    @rule(data=st.data(), more=small)
    def extend(self, data, more):
        """Another chunk takes exactly the blocks that its tokens still lack."""
        i = self.pick(data, set(self.tokens) - self.growing)
        goal = self.tokens[i] + more
        lacking = self.blocks(goal) - self.blocks(self.tokens[i])
        assert self.real.blocks_to_reach(self.seqs[i], goal) == lacking
        if lacking <= self.num_free():
            self.real.allocate(self.seqs[i], goal)
            self.tokens[i] = goal

    @precondition(lambda self: set(self.tokens) - self.growing)
    @rule(data=st.data())
    def start_growth(self, data):
        i = self.pick(data, set(self.tokens) - self.growing)
        self.real.start_growth(self.seqs[i], self.tokens[i])
        self.growing.add(i)

    @precondition(lambda self: self.growing)
    @rule(data=st.data())
    def stop_growth(self, data):
        i = self.pick(data, self.growing)
        self.real.stop_growth(self.seqs[i])
        self.growing.remove(i)

    @rule(max_steps=st.integers(0, 40), share=st.floats(0, 1))
    def grow(self, max_steps, share):
        """The limit is the last number of steps whose demand fits, and growing that far is possible."""
        limit = self.real.growth_limit(max_steps)
        assert limit == max(n for n in range(max_steps + 1) if self.demand(n) <= self.num_free())
        steps = round(limit * share)
        self.real.grow(steps)
        for i in self.growing:
            self.tokens[i] += steps

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data):
        self.forget(self.pick(data, self.tokens), self.real.free)

    def forget(self, i: int, how) -> int:
        moved = how(self.seqs[i])
        self.growing.discard(i)
        del self.tokens[i]
        assert self.real.table(self.seqs[i]) == ()
        return moved

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def swap_out(self, data):
        """Blocks leave only if swap space has room for all of them; otherwise nothing happens."""
        i = self.pick(data, self.tokens)
        num_blocks, tokens = len(self.real.table(self.seqs[i])), self.tokens[i]
        in_swap = sum(self.blocks(n) for n in self.swapped.values())
        if in_swap + num_blocks > self.swap_blocks:
            assert self.real.swap_out(self.seqs[i]) == 0
            return
        assert self.forget(i, self.real.swap_out) == num_blocks * BLOCK_BYTES
        self.swapped[i] = tokens

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), more=st.integers(0, 3))
    def swap_in(self, data, more):
        i = self.pick(data, self.swapped)
        goal = self.swapped[i] + more
        if self.blocks(goal) <= self.num_free():
            assert self.real.swap_in(self.seqs[i], goal) == self.blocks(self.swapped.pop(i)) * BLOCK_BYTES
            self.tokens[i] = goal

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data):
        """A child shares every block of its parent and takes none."""
        i, free = self.pick(data, self.tokens), self.num_free()
        child = sequence(self.next_id, 1)
        self.real.fork(self.seqs[i], child)
        self.seqs[child.id], self.tokens[child.id] = child, self.tokens[i]
        self.next_id += 1
        assert self.real.table(child) == self.real.table(self.seqs[i])
        assert self.num_free() == free

    @precondition(lambda self: self.tokens and self.num_free() > 0)
    @rule(data=st.data())
    def write(self, data):
        """Copy on write: afterwards the block at that place is the sequence's own, and no other table has changed."""
        i = self.pick(data, self.tokens)
        before = {j: self.real.table(self.seqs[j]) for j in self.tokens}
        index = data.draw(st.integers(0, len(before[i]) - 1), label="place")
        was_shared = sum(before[i][index] in table for table in before.values()) > 1
        assert self.real.make_writable(self.seqs[i], index) == was_shared
        after = {j: self.real.table(self.seqs[j]) for j in self.tokens}
        assert sum(after[i][index] in table for table in after.values()) == 1
        assert all(after[j] == before[j] for j in self.tokens if j != i)
        assert [b for k, b in enumerate(after[i]) if k != index] == [b for k, b in enumerate(before[i]) if k != index]

    @invariant()
    def tables_cover_their_tokens_with_real_blocks(self):
        for i, tokens in self.tokens.items():
            table = self.real.table(self.seqs[i])
            assert len(table) == len(set(table)) == self.blocks(tokens)
            assert all(self.null_blocks <= block < self.num_usable + self.null_blocks for block in table)

    @invariant()
    def free_and_held_make_the_total_and_references_count_tables(self):
        assert self.real.num_free_blocks == self.num_free()
        held = self.held_blocks()
        assert all(self.real.num_references(block) == held.count(block) for block in set(held))

    @invariant()
    def demand_is_the_sum_over_sequences(self):
        assert all(self.real.growth_demand(n) == self.demand(n) for n in range(12))


class ContiguousMachine(RuleBasedStateMachine):
    """INV-2 for ``ContiguousAllocator``. The model: a row of cells, each naming its owner."""

    @initialize(
        capacity=st.integers(1, 60),
        reserve=st.sampled_from(["max_model_len", "max_tokens", "oracle"]),
        max_model_len=st.integers(1, 40),
    )
    def build(self, capacity, reserve, max_model_len):
        self.real = ContiguousAllocator(capacity, reserve, max_model_len)
        self.model = CellRow(capacity)
        self.reserve, self.max_model_len = reserve, max_model_len
        self.held: dict[int, Sequence] = {}
        self.next_id = 0

    def need(self, r: Request) -> int:
        if self.reserve == "oracle":
            return r.num_total_tokens
        declared = min(r.num_prompt_tokens + r.max_output_tokens, self.max_model_len)
        return declared if self.reserve == "max_tokens" else self.max_model_len

    @rule(prompt=small, output=small, extra=st.integers(0, 10))
    def admit(self, prompt, output, extra):
        """Admitted iff some hole is large enough, and then placed in the first one."""
        seq = sequence(self.next_id, prompt, output, extra)
        if seq.request.num_total_tokens > self.max_model_len:
            return  # rejected before any allocator sees it
        need, start = self.need(seq.request), self.model.first_fit(self.need(seq.request))
        assert self.real.declared_tokens(seq.request) == need
        assert (self.real.refusal(seq.request) is None) == (need <= len(self.model.cells))
        assert self.real.can_admit(seq) == (start is not None)
        too_small = sum(size for _, size in self.model.holes() if size < need)
        assert self.real.unusable_tokens(seq.request) == too_small
        if start is not None:
            self.real.allocate(seq, prompt)
            assert self.real.range_of(seq) == (self.model.place(seq.id, need), need)
            self.held[seq.id] = seq
            self.next_id += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data):
        i = data.draw(st.sampled_from(sorted(self.held)), label="sequence")
        self.real.free(self.held.pop(i))
        self.model.release(i)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), steps=st.integers(1, 20))
    def decode(self, data, steps):
        """Growth stays inside the reservation: it takes nothing and is never bound by memory."""
        seq = self.held[data.draw(st.sampled_from(sorted(self.held)), label="sequence")]
        self.real.start_growth(seq, seq.num_known_tokens)
        assert self.real.growth_demand(steps) == 0
        assert self.real.growth_limit(steps) == steps
        self.real.grow(steps)
        self.real.stop_growth(seq)

    @invariant()
    def the_map_is_the_row_of_cells(self):
        assert self.real.holes() == self.model.holes()
        assert self.real.num_free_blocks == self.model.free

    @invariant()
    def waste_is_all_that_is_reserved_and_not_filled(self):
        used = sum(seq.request.num_prompt_tokens for seq in self.held.values())
        waste = self.real.waste(used, 0)
        assert waste.reserved_unused == sum(seq.request.num_output_tokens for seq in self.held.values())
        assert used + waste.reserved_unused + waste.internal == self.model.reserved_tokens


def test_a_cache_of_any_size_is_made_at_once():
    """A scenario may name petabytes (one token of a small model is 8 KiB): free blocks are not listed before use."""
    cache = PagedAllocator(2**40, 1, max_model_len=1000, null_blocks=1)
    first, second = sequence(0, 3), sequence(1, 4)
    cache.allocate(first, 3)
    cache.free(first)
    cache.allocate(second, 4)
    assert cache.num_free_blocks == 2**40 - 1 - 4
    assert len(set(cache.table(second))) == 4


TestPagedAllocator = PagedMachine.TestCase
TestContiguousAllocator = ContiguousMachine.TestCase
TestPagedAllocator.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestContiguousAllocator.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
