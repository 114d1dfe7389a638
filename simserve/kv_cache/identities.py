"""What blocks hold, and where it is found again (hashes chained from the first block: PagedAttention, vLLM v1).

A full block is identified by all tokens from the start of its sequence to its own end. Where the trace tells what
prompts hold, equal beginnings have equal identities; what a model generated, and what no trace tells, is the request's
own, and only the request itself finds it again (after a preemption, or when its client comes again).

Identities are integers: from 0 the nodes of the trace's radix tree, below -1 a request and a place in it (counted from
the first block that no trace tells of). So runs of blocks are looked up, entered and dropped as slices. An index is
never cleaned: an entry counts only while its block says the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simserve.kv_cache.free_queue import grown
from simserve.request import Chain, IntColumn

NAMELESS = -1
_PLACE_BITS = 24  # blocks per sequence
_SWEEP_FROM = 1 << 16  # entries
_PROBE = 64  # blocks that are looked up first: most runs end before


class Names(NamedTuple):
    """The identities of a request's blocks: of the first ones by content, of all others by the request."""

    request_id: int
    of_content: IntColumn

    def own(self, begin: int, end: int) -> IntColumn:
        """The identities of its own places ``begin`` to ``end``."""
        first = -2 - (self.request_id << _PLACE_BITS)
        return np.arange(first - begin, first - end, -1)


def names_of(request_id: int, chain: Chain | None, block_size: int) -> Names:
    """How a request's blocks are called: each full one by the content block that holds its last token, and by its place
    among the ``per_id`` blocks at most that end there. Blocks of a range are numbered in its own order, with no look at
    its tokens: ranges that share no token share no number."""
    if chain is None:
        return Names(request_id, np.zeros(0, np.int64))
    num_blocks = chain.num_tokens // block_size
    if isinstance(chain.ids, range) and chain.block_tokens == 1:
        first = -(-chain.ids.start // block_size)
        names = np.arange(first, first + num_blocks)
        if chain.lead:
            lead, num_led = -(-chain.lead.start // block_size), len(chain.lead) // block_size
            names[:num_led] = np.arange(lead, lead + num_led)
        return Names(request_id, names)
    ids, per_id = np.asarray(chain.ids, np.int64), -(-chain.block_tokens // block_size)
    if chain.block_tokens % block_size == 0:
        return Names(request_id, (ids[:, None] * per_id + np.arange(per_id)).ravel()[:num_blocks])
    last_tokens = np.arange(block_size - 1, num_blocks * block_size, block_size)
    at, within = np.divmod(last_tokens, chain.block_tokens)
    return Names(request_id, ids[at] * per_id + within // block_size)


class Identities:
    """Which block holds what. Of several blocks with one identity the one that has had it longest is found."""

    def __init__(self) -> None:
        self._of_block = np.full(64, NAMELESS, np.int64)
        self._shares: npt.NDArray[np.bool_] = np.zeros(64, np.bool_)  # of each block: others have its identity too
        self._by_content = np.full(64, NAMELESS, np.int64)  # a block that has, or had, each identity
        self._own: dict[int, IntColumn] = {}  # request id -> block at each place of it
        self._num_own = 0
        self._sweep_at = _SWEEP_FROM
        self._further: dict[int, dict[int, None]] = {}  # identity -> blocks beyond the first, the oldest first

    def fit(self, num_blocks: int, names: Names | None = None) -> None:
        """Make room for blocks up to a number, and for the identities of a request."""
        if num_blocks > len(self._of_block):
            self._of_block = grown(self._of_block, num_blocks, NAMELESS)
            self._shares = np.append(self._shares, np.zeros(len(self._of_block) - len(self._shares), np.bool_))
        if names is not None and len(names.of_content):
            highest = int(names.of_content.max())
            if highest >= len(self._by_content):
                self._by_content = grown(self._by_content, highest + 1, NAMELESS)

    @property
    def ever_found(self) -> IntColumn:
        """By identity of content, ``NAMELESS`` where no block has ever had it."""
        return self._by_content

    def find(self, names: Names, stop: int) -> IntColumn:
        """The blocks that hold the request's first ones, up to the first that is nowhere; at most ``stop``."""
        known = names.of_content[:stop]
        found = self._run(self._by_content[known[:_PROBE]], known[:_PROBE])
        if len(found) == _PROBE:
            found = self._run(self._by_content[known], known)
        num_known = len(names.of_content)
        if len(found) < num_known or stop <= num_known or names.request_id not in self._own:
            return found
        own = self._own[names.request_id][: stop - num_known]
        return np.concatenate((found, self._run(own, names.own(0, len(own)))))

    def enter(self, names: Names, begin: int, blocks: IntColumn) -> None:
        """These blocks, nameless so far, hold the request's from place ``begin`` on."""
        known = names.of_content[begin : begin + len(blocks)]
        if len(known):
            self._enter(known, blocks[: len(known)], self._by_content, known)
        blocks = blocks[len(known) :]
        if len(blocks):
            first = max(0, begin - len(names.of_content))
            places = np.arange(first, first + len(blocks))
            row = self._own_row(names.request_id, first + len(blocks))
            self._enter(names.own(first, first + len(blocks)), blocks, row, places)

    def drop(self, blocks: IntColumn) -> int:
        """These blocks will hold something else; how many of them could have been found."""
        num_named = self.count(blocks)
        if num_named:
            if self._further:
                for block in blocks[self._shares[blocks]].tolist():
                    self._drop_shared(block)
            self._of_block[blocks] = NAMELESS
        return num_named

    def drop_one(self, block: int) -> bool:
        """The same for one block."""
        if self._of_block.data[block] == NAMELESS:
            return False
        self._drop_shared(block)
        self._of_block[block] = NAMELESS
        return True

    def count(self, blocks: IntColumn) -> int:
        """How many of these blocks have an identity."""
        return int(np.count_nonzero(self._of_block[blocks] != NAMELESS))

    def are_named(self, blocks: IntColumn) -> npt.NDArray[np.bool_]:
        """Which of these blocks have an identity."""
        named: npt.NDArray[np.bool_] = self._of_block[blocks] != NAMELESS
        return named

    def _run(self, blocks: IntColumn, identities: IntColumn) -> IntColumn:
        if not len(blocks):
            return blocks
        misses = self._of_block[blocks] != identities
        first = int(misses.argmax())
        return blocks[:first] if misses[first] else blocks

    def _enter(self, identities: IntColumn, blocks: IntColumn, index: IntColumn, at: IntColumn) -> None:
        there = index[at]
        again = self._of_block[there] == identities
        self._of_block[blocks] = identities
        if np.count_nonzero(again):
            self._shares[there[again]] = self._shares[blocks[again]] = True
            for identity, block in zip(identities[again].tolist(), blocks[again].tolist(), strict=True):
                self._further.setdefault(identity, {})[block] = None
            at, blocks = at[~again], blocks[~again]
        index[at] = blocks

    def _drop_shared(self, block: int) -> None:
        """Another block serves in its place, if it was the one that is found."""
        if not self._shares[block]:
            return
        self._shares[block] = False
        identity = int(self._of_block[block])
        further = self._further[identity]
        index, at = self._where(identity)
        if index[at] == block:
            index[at] = next(iter(further))
            del further[int(index[at])]
        else:
            del further[block]
        if not further:
            del self._further[identity]
            self._shares[index[at]] = False

    def _where(self, identity: int) -> tuple[IntColumn, int]:
        if identity >= 0:
            return self._by_content, identity
        request_id, place = divmod(-2 - identity, 1 << _PLACE_BITS)
        return self._own[request_id], place

    def _own_row(self, request_id: int, size: int) -> IntColumn:
        row = self._own.get(request_id)
        if row is None or len(row) < size:
            longer = np.zeros(size, np.int64)
            if row is not None:
                longer[: len(row)] = row
                self._num_own -= len(row)
            self._own[request_id] = row = longer
            self._num_own += size
            if self._num_own > self._sweep_at:
                self._sweep(request_id)
        return row

    def _sweep(self, spared: int) -> None:
        """Forget requests of which no block is left; seldom enough to cost nothing per block."""
        for request_id, row in list(self._own.items()):
            own = Names(request_id, row[:0]).own(0, len(row))
            if request_id != spared and not (self._of_block[row] == own).any():
                del self._own[request_id]
        self._num_own = sum(map(len, self._own.values()))
        self._sweep_at = 2 * self._num_own + _SWEEP_FROM
