"""What prompts hold to a ``Content``: lists of block hashes or token ids become nodes of one radix tree.

Rows are sorted as bytes, where prompts that begin alike are neighbours: what a row shares with any other before it, it
shares with the one just before. A list costs what its bytes cost to sort and to compare once, whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.request import Content, IntColumn, RequestTable


@dataclass(frozen=True)
class Lists:
    """One list of ids per row, as the bytes of a little-endian array with ``item_bytes`` per id; ``per_node`` ids make
    a node of the tree (one block hash, or the token ids of a block), and what is left over at the end is cut off."""

    rows: Sequence[bytes]
    item_bytes: int
    per_node: int = 1

    @property
    def node_bytes(self) -> int:
        return self.item_bytes * self.per_node


@dataclass(frozen=True)
class Nodes:
    """Row i has ``ids[offsets[i]:offsets[i + 1]]``: equal ids at the same index if and only if the lists are equal up
    to there. Numbered from 0 in order of first appearance."""

    ids: IntColumn
    offsets: IntColumn

    @property
    def seen_before(self) -> float:
        """The share of all nodes that an earlier row has, NaN without any: with an infinite cache, the block hit rate
        that Mooncake (FAST'25) and others publish for their traces, where the partial last block of a prompt counts as
        a block like any other."""
        return 1 - (int(self.ids.max()) + 1) / len(self.ids) if len(self.ids) else float("nan")


def interned(lists: Lists) -> Nodes:
    """The lists as nodes of their radix tree. Exact (no hash decides what is equal), and linear but for the sort."""
    rows = lists.rows
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) // lists.node_bytes for row in rows], out=offsets[1:])
    ids = np.empty(int(offsets[-1]), np.int64)
    previous, previous_row, num_nodes = ids[:0], b"", 0
    for i in sorted(range(len(rows)), key=rows.__getitem__):
        current = ids[offsets[i] : offsets[i + 1]]
        shared = _common_bytes(previous_row, rows[i]) // lists.node_bytes
        current[:shared] = previous[:shared]
        current[shared:] = np.arange(num_nodes, num_nodes + len(current) - shared)
        num_nodes += len(current) - shared
        previous, previous_row = current, rows[i]
    return Nodes(_renumbered(ids), offsets)


def _common_bytes(a: bytes, b: bytes) -> int:
    """How many bytes two rows begin with in common."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return int(np.argmax(np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n)))


def _renumbered(ids: IntColumn) -> IntColumn:
    """Ids numbered from 0 in order of first appearance."""
    first = _first_places(ids)
    rank = np.cumsum(first == np.arange(len(ids))) - 1
    numbered: IntColumn = rank[first]
    return numbered


def _first_places(ids: IntColumn) -> IntColumn:
    """For each place of an array, where its id stands first."""
    first = np.empty(int(ids.max(initial=-1)) + 1, np.int64)
    first[ids[::-1]] = np.arange(len(ids))[::-1]  # of all places of an id, the one written last stays
    places: IntColumn = first[ids]
    return places


def full_blocks(nodes: Nodes, num_prompt_tokens: IntColumn, block_tokens: int) -> Content:
    """The content of prompts whose nodes are blocks of ``block_tokens``: without the last block where it is partial."""
    kept = np.minimum(np.diff(nodes.offsets), num_prompt_tokens // block_tokens)
    offsets = _offsets(kept)
    ids = nodes.ids[_places(nodes.offsets[:-1], kept, offsets)]
    return Content(_renumbered(ids), offsets, block_tokens)


def taken(content: Content, rows: IntColumn) -> Content:
    """The content of the given rows, in their order; a row may come more than once."""
    lengths = np.diff(content.offsets)[rows]
    offsets = _offsets(lengths)
    return Content(content.ids[_places(content.offsets[rows], lengths, offsets)], offsets, content.block_tokens)


def _offsets(lengths: IntColumn) -> IntColumn:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _places(begins: IntColumn, lengths: IntColumn, offsets: IntColumn) -> IntColumn:
    """``begins[i] … begins[i] + lengths[i] - 1`` for each i, end to end; they fill ``offsets``."""
    return np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])


def repeated_tokens(table: RequestTable) -> tuple[int, int]:
    """(prompt tokens that an infinite cache would serve, all prompt tokens), by the table's order: whole content blocks
    that an earlier prompt has, and never a prompt's last token, which is always computed. Answers are unknown content.
    An engine's blocks that do not divide the content's can reach less."""
    content, prompts = table.content, table.num_prompt_tokens
    total = int(prompts.sum())
    if content is None:
        return 0, total
    seen = _first_places(content.ids) < np.arange(len(content.ids))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(seen)])
    num_seen = before[content.offsets[1:]] - before[content.offsets[:-1]]
    return int(np.minimum(num_seen * content.block_tokens, prompts - 1).sum()), total
