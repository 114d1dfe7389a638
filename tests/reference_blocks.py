"""The paged cache of the reference engine, as literally as can be: a list of blocks, each with what it holds and how
many tables hold it; and a list of the free ones in the order in which they are taken.

The rules are vLLM's v1 (0.32: ``v1/core/block_pool.py``, ``kv_cache_manager.py``, ``single_type_kv_cache_manager.py``):
only full blocks are found again (``cache_full_blocks``), each by all tokens from the start to its own end; they get
their identity when the step that fills them is scheduled (``allocate_slots``); a hit covers at most all tokens but the
last (``get_computed_blocks``); blocks are given back tail first (``free``) and taken from the front of one queue, where
a block that is taken forgets what it held (``get_new_blocks``); a hit that is free leaves the queue (``touch``) and
counts against admission as a new one does (``get_num_blocks_to_allocate``). Of several blocks that hold the same all
keep their identity (``BlockHashToBlockMap``). Since some version after 0.19 blocks without identity are given back to
the front of the queue (``free_blocks``): ``nameless_first``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from dataclasses import dataclass

from simserve.request import Request
from tests.prefixes import ids_of
from tests.reference_types import Seq, Settings

Identity = tuple[Hashable, ...]


@dataclass(eq=False)
class Block:
    """One block: what its tokens are, where that can be found again, and in how many tables it stands."""

    number: int
    identity: Identity | None = None
    num_holders: int = 0


def identity_of(request: Request, index: int, block_size: int) -> Identity:
    """What block ``index`` of a request holds: all content from the start up to its end, as far as the trace tells of
    it; otherwise something that only this request has there."""
    end, content = (index + 1) * block_size, getattr(request, "content", None)
    if content is not None:
        num_known = math.ceil(end / content.block_tokens)
        if end <= len(content.ids) * content.block_tokens - content.short_by:
            return (end, *ids_of(content, num_known))
    return (end, "of request", request.id)


class BlockList:
    """Paged: every block, whose table it stands in, and the queue of the free ones."""

    def __init__(self, s: Settings) -> None:
        self.block_size, self.watermark_blocks = s.block_size, s.watermark_blocks
        self.prefix_caching, self.nameless_first = s.prefix_caching, s.nameless_first
        self.blocks = [Block(number) for number in range(s.null_blocks, s.num_blocks)]
        self.queue = list(self.blocks)
        self.found: list[Block] = []  # those that have an identity, in the order in which they got it
        self.tables: dict[int, list[Block]] = {}
        self.num_named: dict[int, int] = {}  # blocks of each table, from its start, whose identity has been settled
        self.num_evictions = 0
        self.ever: set[Identity] = set()  # what any block has held
        self.asked: set[Identity] = set()  # what any request that was looked up begins with, as far as the trace tells
        self.taken: list[int] = []  # numbers of the blocks that were taken for something new, emptied by who reads them

    # What there is ----------------------------------------------------------------------------------------------

    @property
    def usable(self) -> int:
        return len(self.blocks)

    @property
    def free(self) -> int:
        return len(self.queue)

    @property
    def cached_free(self) -> int:
        """Blocks that nobody holds and that could be hit."""
        return sum(block.identity is not None for block in self.queue)

    @property
    def reserved_tokens(self) -> int:
        return (self.usable - self.free) * self.block_size

    def filled_tokens(self, running: list[Seq]) -> int:
        """Tokens in the cache, a shared one counted once: a block is as full as the least of its holders has it, for
        those who hit a block that is about to be filled are ahead of the one who fills it."""
        filled: dict[int, int] = {}
        for seq in running:
            for j, block in enumerate(self.tables[seq.id]):
                mine = min(max(seq.computed - j * self.block_size, 0), self.block_size)
                filled[block.number] = min(mine, filled.get(block.number, mine))
        return sum(filled.values())

    # Needs ------------------------------------------------------------------------------------------------------

    def num_blocks(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.block_size)

    def missing(self, seq: Seq, num_tokens: int) -> int:
        """Blocks that a sequence lacks to hold ``num_tokens`` in all."""
        return max(0, self.num_blocks(num_tokens) - len(self.tables.get(seq.id, [])))

    def fits_new(self, seq: Seq, spare_blocks: int = 0) -> bool:
        hits = self.hits(seq)
        need = self.num_blocks(seq.known) - len(hits) + sum(block.num_holders == 0 for block in hits)
        return need + spare_blocks <= self.free - self.watermark_blocks

    def hits(self, seq: Seq) -> list[Block]:
        """The longest run of blocks from the start that are there, the last known token never among them."""
        run: list[Block] = []
        if not self.prefix_caching or seq.swapped_blocks:
            return run
        for index in range((seq.known - 1) // self.block_size):
            block = self.find(identity_of(seq.request, index, self.block_size))
            if block is None:
                break
            run.append(block)
        return run

    def look_up(self, seq: Seq) -> tuple[int, int, int, int]:
        """Tokens known, found, evicted since, and found or asked for by others before, whether there by now or not."""
        size = self.block_size
        names = [identity_of(seq.request, index, size) for index in range((seq.known - 1) // size)]
        ever = sum(1 for _ in itertools.takewhile(lambda name: name in self.ever, names))
        either = self.ever | self.asked
        bound = sum(1 for _ in itertools.takewhile(lambda name: name in either, names))
        to_come = [identity_of(seq.request, index, size) for index in range((seq.request.num_total_tokens - 1) // size)]
        self.asked |= {name for name in to_come if "of request" not in name}
        found = len(self.hits(seq))
        return seq.known, found * size, (ever - found) * size, bound * size

    def find(self, identity: Identity) -> Block | None:
        return next((block for block in self.found if block.identity == identity), None)

    # Changes ----------------------------------------------------------------------------------------------------

    def adopt_hits(self, seq: Seq) -> int:
        """A sequence that is admitted takes what it hits into its table; the tokens that need not be computed."""
        hits = self.hits(seq)
        for block in hits:
            if block.num_holders == 0:
                self.queue.remove(block)
            block.num_holders += 1
        self.tables[seq.id], self.num_named[seq.id] = hits, len(hits)
        return len(hits) * self.block_size

    def take(self, seq: Seq, num_tokens: int) -> None:
        """Room for ``num_tokens`` in all, which will be there when the step under way has ended."""
        table = self.tables.setdefault(seq.id, [])
        for _ in range(self.missing(seq, num_tokens)):
            block = self.queue.pop(0)
            self.forget(block)
            block.num_holders = 1
            self.taken.append(block.number)
            table.append(block)
        if self.prefix_caching:
            self.num_named.setdefault(seq.id, 0)
            self.settle(seq, min(num_tokens, seq.known))  # and no drafts

    def settle(self, seq: Seq, num_tokens: int) -> None:
        """The full blocks of so many tokens get their identity."""
        table = self.tables[seq.id]
        for index in range(self.num_named[seq.id], num_tokens // self.block_size):
            self.name(table[index], identity_of(seq.request, index, self.block_size))
            self.num_named[seq.id] += 1

    def forget(self, block: Block) -> None:
        if block.identity is not None:
            block.identity = None
            self.found.remove(block)
            self.num_evictions += 1

    def name(self, block: Block, identity: Identity) -> None:
        """Another block may hold the same: the first one serves, and when it is gone the next."""
        assert block.identity is None
        block.identity = identity
        self.found.append(block)
        self.ever.add(identity)

    def shrink(self, seq: Seq, num_tokens: int) -> None:
        """A sequence keeps what so many tokens fill; of the rest nothing is to be found again."""
        if self.prefix_caching:
            self.settle(seq, num_tokens)
        table, num_kept = self.tables[seq.id], self.num_blocks(num_tokens)
        self.tables[seq.id] = table[:num_kept]
        self.give_back(table[num_kept:])

    def release(self, seq: Seq) -> int:
        """A sequence gives back all it holds; how many blocks that were."""
        table = self.tables.pop(seq.id)
        self.num_named.pop(seq.id, None)
        self.give_back(table)
        return len(table)

    def give_back(self, table: list[Block]) -> None:
        """The last one first."""
        nameless = []
        for block in reversed(table):
            block.num_holders -= 1
            if block.num_holders == 0 and self.nameless_first and block.identity is None:
                nameless.append(block)
            elif block.num_holders == 0:
                self.queue.append(block)
        self.queue = nameless + self.queue
