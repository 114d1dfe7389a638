"""INV-2 for the prefix cache: against a picture of its memory in which every block lists the tokens that it holds."""

from __future__ import annotations

import math
from collections.abc import Hashable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simserve.kv_cache import PrefixCachingAllocator
from simserve.request import Chain, Request, Sequence

Tokens = tuple[Hashable, ...]


class Picture:
    """Blocks by number: what each holds, as all tokens from the start of its sequence; which sequences hold it; and the
    free ones in a list, the next to be taken first."""

    def __init__(self, blocks: range, nameless_first: bool) -> None:
        self.queue = list(blocks)
        self.nameless_first = nameless_first
        self.tokens: dict[int, Tokens] = {}  # of full blocks, those known for longest first
        self.holders: dict[int, set[int]] = {block: set() for block in blocks}
        self.tables: dict[int, list[int]] = {}
        self.num_evictions = 0

    def hits(self, tokens: Tokens, size: int) -> list[int]:
        run: list[int] = []
        while (len(run) + 1) * size < len(tokens):
            begin = tokens[: (len(run) + 1) * size]
            found = [block for block, held in self.tokens.items() if held == begin]
            if not found:
                break
            run.append(found[0])
        return run

    def adopt(self, seq_id: int, hits: list[int]) -> None:
        self.tables[seq_id] = list(hits)
        for block in hits:
            if not self.holders[block]:
                self.queue.remove(block)
            self.holders[block].add(seq_id)

    def take(self, seq_id: int) -> None:
        block = self.queue.pop(0)
        self.num_evictions += self.tokens.pop(block, None) is not None
        self.holders[block] = {seq_id}
        self.tables[seq_id].append(block)

    def fill(self, seq_id: int, tokens: Tokens, size: int) -> None:
        """The sequence's first tokens are in its table: its full blocks are known by them."""
        for j in range(len(tokens) // size):
            self.tokens.setdefault(self.tables[seq_id][j], tokens[: (j + 1) * size])

    def free(self, seq_id: int) -> None:
        nameless = []
        for block in reversed(self.tables.pop(seq_id)):
            self.holders[block].remove(seq_id)
            if not self.holders[block]:
                (nameless if self.nameless_first and block not in self.tokens else self.queue).append(block)
        self.queue = nameless + self.queue


class PrefixMachine(RuleBasedStateMachine):
    """Sequences that begin alike are admitted, prefilled in chunks, decoded, preempted, brought back and finished."""

    @initialize(
        size=st.integers(1, 4),
        num_usable=st.integers(1, 20),
        null_blocks=st.integers(0, 1),
        watermark=st.sampled_from([0.0, 0.0, 0.25]),
        nameless_first=st.booleans(),
        data=st.data(),
    )
    def build(self, size, num_usable, null_blocks, watermark, nameless_first, data):
        self.size, self.num_usable = size, num_usable
        self.watermark_blocks = int(watermark * num_usable)
        self.content_tokens = data.draw(st.integers(1, 8))
        self.real = PrefixCachingAllocator(
            num_usable + null_blocks,
            size,
            max_model_len=1000,
            watermark=watermark,
            null_blocks=null_blocks,
            nameless_first=nameless_first,
        )
        self.picture = Picture(range(null_blocks, null_blocks + num_usable), nameless_first)
        self.nodes: dict[tuple[int, ...], int] = {}  # paths of content, numbered as a trace reader does
        self.paths: dict[int, tuple[int, ...]] = {}
        self.seqs: dict[int, Sequence] = {}
        self.waiting: set[int] = set()
        self.growing: dict[int, None] = {}  # in the order in which they began
        self.room: dict[int, int] = {}  # tokens that a running sequence has room for, all computed

    def blocks(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.size)

    def tokens(self, i: int, stop: int) -> Tokens:
        """A token of known content is all content up to the end of its content block; any other is the sequence's."""
        path, n = self.paths[i], self.content_tokens
        return tuple(path[: q // n + 1] if q < len(path) * n else (i, "own", q) for q in range(stop))

    def need(self, i: int) -> int:
        """Blocks that admission takes out of the queue, hits that nobody holds included."""
        known = self.seqs[i].num_known_tokens
        hits = self.picture.hits(self.tokens(i, known), self.size)
        return self.blocks(known) - len(hits) + sum(not self.picture.holders[block] for block in hits)

    @rule(
        path=st.lists(st.integers(0, 1), max_size=4),
        more=st.sampled_from([0, 0, 1, 2, 5]),
        again=st.sampled_from([True, True, False]),
        data=st.data(),
    )
    def arrive(self, path, more, again, data):
        """A prompt of some content and some tokens that nothing is known of; or the same as an earlier one."""
        i = len(self.seqs)
        path = data.draw(st.sampled_from(sorted(self.paths.values()))) if again and self.paths else tuple(path)
        ids = [self.nodes.setdefault(path[: k + 1], len(self.nodes)) for k in range(len(path))]
        length = max(1, len(path) * self.content_tokens + more)
        chain = Chain(ids, self.content_tokens) if ids else None
        self.seqs[i], self.paths[i] = Sequence(Request(i, 0, length, 100, 100, 0, chain)), path
        self.waiting.add(i)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data):
        """It fits iff what it lacks and what it hits among the free stays above the watermark; it takes its hits, and
        then the blocks that were given back longest ago."""
        i = data.draw(st.sampled_from(sorted(self.waiting)))
        seq, known = self.seqs[i], self.seqs[i].num_known_tokens
        fits = self.need(i) <= len(self.picture.queue) - self.watermark_blocks
        assert self.real.can_admit(seq) == fits
        if not fits:
            return
        hits = self.picture.hits(self.tokens(i, known), self.size)
        assert self.real.num_cached_tokens(seq) == len(hits) * self.size
        seq.num_computed_tokens = len(hits) * self.size
        self.picture.adopt(i, hits)
        self.waiting.remove(i)
        some = st.integers(seq.num_computed_tokens + 1, known)
        self.compute(i, data.draw(st.one_of(st.just(known), some), label="computed in the step"))

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def next_chunk(self, data):
        i = data.draw(st.sampled_from(self.unfinished()))
        stop = data.draw(st.integers(self.room[i] + 1, self.seqs[i].num_known_tokens), label="computed in the step")
        if self.blocks(stop) - len(self.picture.tables[i]) <= len(self.picture.queue):
            self.compute(i, stop)

    def unfinished(self) -> list[int]:
        return [i for i in self.room if self.room[i] < self.seqs[i].num_known_tokens and i not in self.growing]

    def compute(self, i: int, stop: int) -> None:
        self.real.allocate(self.seqs[i], stop)
        while len(self.picture.tables[i]) < self.blocks(stop):
            self.picture.take(i)
        self.picture.fill(i, self.tokens(i, stop), self.size)
        self.room[i] = self.seqs[i].num_computed_tokens = stop

    @precondition(lambda self: any(self.is_complete(i) for i in self.room))
    @rule(data=st.data())
    def start_growth(self, data):
        """All known tokens are computed: the next one is emitted, and the sequence decodes."""
        i = data.draw(st.sampled_from([i for i in self.room if self.is_complete(i)]))
        self.seqs[i].num_generated_tokens += 1
        self.real.start_growth(self.seqs[i], self.room[i])
        self.growing[i] = None

    def is_complete(self, i: int) -> bool:
        return i not in self.growing and self.room[i] == self.seqs[i].num_known_tokens

    @rule(max_steps=st.integers(0, 20), share=st.floats(0, 1))
    def grow(self, max_steps, share):
        """Many steps at once hand out the blocks that single steps do, in their order."""
        steps = round(self.real.growth_limit(max_steps) * share)
        self.real.grow(steps)
        for _ in range(steps):
            for i in self.growing:
                self.room[i] += 1
                self.seqs[i].num_generated_tokens += 1
                if self.blocks(self.room[i]) > len(self.picture.tables[i]):
                    self.picture.take(i)
                self.picture.fill(i, self.tokens(i, self.room[i]), self.size)

    @precondition(lambda self: self.room)
    @rule(data=st.data(), comes_back=st.booleans())
    def free(self, data, comes_back):
        """It is finished, or preempted and waits with what it has generated."""
        i = data.draw(st.sampled_from(sorted(self.room)))
        self.growing.pop(i, None)
        self.seqs[i].num_computed_tokens = self.room.pop(i)
        self.real.free(self.seqs[i])
        self.picture.free(i)
        self.seqs[i].num_computed_tokens = 0
        if comes_back:
            self.waiting.add(i)

    @invariant()
    def tables_and_queue_are_those_of_the_picture(self):
        for i, table in self.picture.tables.items():
            assert list(self.real.table(self.seqs[i])) == table
            assert len(set(table)) == len(table)
        assert self.real.free_blocks() == self.picture.queue

    @invariant()
    def free_and_held_make_the_total_and_references_count_holders(self):
        holders = self.picture.holders
        held = [block for block in holders if holders[block]]
        assert self.real.num_free_blocks + len(held) == self.num_usable
        assert all(self.real.num_references(block) == len(holders[block]) for block in holders)
        assert self.real.shared_tokens == self.size * sum(len(holders[block]) - 1 for block in held)

    @invariant()
    def what_is_kept_and_what_was_evicted_is_counted(self):
        assert self.real.num_evictions == self.picture.num_evictions
        assert self.real.cached_free_tokens == self.size * sum(b in self.picture.tokens for b in self.picture.queue)

    @invariant()
    def whoever_waits_finds_what_the_picture_has(self):
        for i in self.waiting:
            hits = self.picture.hits(self.tokens(i, self.seqs[i].num_known_tokens), self.size)
            assert self.real.num_cached_tokens(self.seqs[i]) == self.size * len(hits)


TestPrefixCache = PrefixMachine.TestCase
TestPrefixCache.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
