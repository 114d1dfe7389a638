"""What prompts hold to a ``Content``: lists of block hashes or token ids become nodes of one radix tree.

Rows are sorted as bytes, where prompts that begin alike are neighbours: what a row shares with any other before it, it
shares with the one just before. A list costs what its bytes cost to sort and to compare once, whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from simserve.request import Content, IntColumn, Ranges, RequestTable


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


def blocks_of(nodes: Nodes, num_prompt_tokens: IntColumn, block_tokens: int) -> Content:
    """The content of prompts whose nodes are blocks of ``block_tokens``, the last one shorter where the prompt ends in
    it. A short block is one content with another only where the prompts are equally long: then all its tokens are
    equal, whatever was hashed; else nothing is known of what they have in common."""
    num_full = num_prompt_tokens // block_tokens
    kept = np.minimum(np.diff(nodes.offsets), -(-num_prompt_tokens // block_tokens))
    offsets = _offsets(kept)
    ids = nodes.ids[_places(nodes.offsets[:-1], kept, offsets)]
    is_short = kept > num_full
    short_by = np.where(is_short, -num_prompt_tokens % block_tokens, 0)
    last = offsets[1:][is_short] - 1
    ids[last] = _apart_by(ids[last], short_by[is_short]) + int(nodes.ids.max(initial=-1)) + 1
    return Content(_renumbered(ids), offsets, block_tokens, short_by if len(last) else None)


def _apart_by(ids: IntColumn, more: IntColumn) -> IntColumn:
    """Numbers from 0 that are equal where both columns are."""
    numbers: IntColumn = np.unique(np.stack((ids, more)), axis=1, return_inverse=True)[1].reshape(-1)
    return numbers


@overload
def taken(content: Content, rows: IntColumn) -> Content: ...
@overload
def taken(content: Ranges, rows: IntColumn) -> Ranges: ...
def taken(content: Content | Ranges, rows: IntColumn) -> Content | Ranges:
    """The content of the given rows, in their order; a row may come more than once."""
    if isinstance(content, Ranges):
        return Ranges(**{name: column[rows] for name, column in vars(content).items() if column is not None})
    lengths = np.diff(content.offsets)[rows]
    offsets = _offsets(lengths)
    ids = content.ids[_places(content.offsets[rows], lengths, offsets)]
    return Content(ids, offsets, content.block_tokens, None if content.short_by is None else content.short_by[rows])


def _offsets(lengths: IntColumn) -> IntColumn:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _places(begins: IntColumn, lengths: IntColumn, offsets: IntColumn) -> IntColumn:
    """``begins[i] … begins[i] + lengths[i] - 1`` for each i, end to end; they fill ``offsets``."""
    return np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])


def ranges_of(group: IntColumn, num_tokens: IntColumn) -> Ranges:
    """Rows of one group begin alike, each for so many tokens; groups have nothing in common."""
    longest = _longest(group, num_tokens)
    return Ranges((np.cumsum(longest) - longest)[np.unique(group, return_inverse=True)[1]], num_tokens)


def led_by(content: Ranges, lead: Ranges) -> Ranges:
    """The same rows, but what each begins with, as far as ``lead`` knows that, is what others of ``lead`` begin with.
    Rows of ``content`` that begin alike must have one lead."""
    after = int((content.first + content.num_tokens).max(initial=0))
    return replace(content, lead_first=lead.first + after, lead_tokens=np.minimum(lead.num_tokens, content.num_tokens))


def _longest(group: IntColumn, num_tokens: IntColumn) -> IntColumn:
    """The most of each group, in the groups' order."""
    groups, inverse = np.unique(group, return_inverse=True)
    longest = np.zeros(len(groups), np.int64)
    np.maximum.at(longest, inverse, num_tokens)
    return longest


def parts(content: Ranges) -> tuple[Ranges, Ranges]:
    """The rows by their own numbers, and by those of what leads them."""
    own = Ranges(content.first, content.num_tokens)
    if content.lead_first is None or content.lead_tokens is None:
        return own, Ranges(content.first, np.zeros_like(content.first))
    return own, Ranges(content.lead_first, content.lead_tokens)


def num_blocks(content: Content | Ranges) -> tuple[int, int]:
    """(whole blocks that the prompts' chains have in all, different ones among them); a range's blocks are tokens."""
    if isinstance(content, Ranges):
        own, lead = parts(content)
        distinct = sum(int(_longest(part.first, part.num_tokens).sum()) for part in (own, lead))
        return int(content.num_tokens.sum()), distinct - int(_longest(own.first, lead.num_tokens).sum())
    short = np.zeros(len(content), bool) if content.short_by is None else content.short_by > 0
    whole = np.delete(content.ids, content.offsets[1:][short] - 1)
    return len(whole), len(np.unique(whole))


def set_apart(content: Content | Ranges, copy: IntColumn) -> Content | Ranges:
    """The same content, but rows of different copies (numbered from 0) have nothing in common."""
    if isinstance(content, Ranges):
        own, lead = parts(content)
        apart = copy * max(int((part.first + part.num_tokens).max(initial=0)) for part in (own, lead))
        moved = Ranges(content.first + apart, content.num_tokens)
        return (
            moved
            if content.lead_first is None
            else replace(moved, lead_first=lead.first + apart, lead_tokens=lead.num_tokens)
        )
    num_ids = int(content.ids.max(initial=-1)) + 1
    return replace(content, ids=content.ids + num_ids * np.repeat(copy, np.diff(content.offsets)))


def repeated_tokens(table: RequestTable) -> tuple[int, int]:
    """(prompt tokens that an infinite cache would serve, all prompt tokens), by the table's order: what an earlier
    request is known to hold, and never a prompt's last token, which is always computed. An engine, which finds whole
    blocks of its own only, can reach less."""
    content, prompts = table.content, table.num_prompt_tokens
    total = int(prompts.sum())
    if content is None:
        return 0, total
    if isinstance(content, Ranges):
        seen = np.maximum(*(_seen_in_ranges(part) for part in parts(content)))
    else:
        seen = _seen_in_blocks(content)
    return int(np.minimum(seen, prompts - 1).sum()), total


def _seen_in_blocks(content: Content) -> IntColumn:
    """Tokens from the start of each row that an earlier one has."""
    seen = _first_places(content.ids) < np.arange(len(content.ids))
    before = _offsets(seen.astype(np.int64))
    num_tokens = (before[content.offsets[1:]] - before[content.offsets[:-1]]) * content.block_tokens
    if content.short_by is None:
        return num_tokens
    ends = np.maximum(content.offsets[1:] - 1, 0)
    is_whole_seen = (np.diff(content.offsets) > 0) & (seen[ends] if len(seen) else False)
    return num_tokens - np.where(is_whole_seen, content.short_by, 0)


def _seen_in_ranges(content: Ranges) -> IntColumn:
    """The same: the longest of the earlier ones that begin alike, as far as it goes."""
    order = np.lexsort((np.arange(len(content)), content.first))
    first, num_tokens = content.first[order], content.num_tokens[order]
    begins = np.append(True, first[1:] != first[:-1])
    group = np.cumsum(begins) - 1
    apart = int(num_tokens.max(initial=0)) + 1
    longest = np.maximum.accumulate(num_tokens + group * apart)  # of a group, so far: later groups stand above
    before = np.where(begins, 0, np.append(0, longest[:-1]) - group * apart)
    seen = np.empty_like(num_tokens)
    seen[order] = np.minimum(before, num_tokens)
    return seen
