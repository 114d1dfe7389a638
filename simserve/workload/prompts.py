"""What a trace tells of its prompts: how long each is, and as far as its ids go, what it holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.request import Content, IntColumn
from simserve.workload.columns import Column
from simserve.workload.content import Lists, Nodes, blocks_of, interned
from simserve.workload.dialects import Dialect, fold
from simserve.workload.odd_rows import counted
from simserve.workload.prompt_ids import ID_BYTES, id_rows
from simserve.workload.refusal import refusal

TOKENS_PER_BLOCK = 16  # of interned token ids: the usual block sizes of engines are its multiples
MAX_TOKENS_PER_BLOCK = 2**20


@dataclass(frozen=True)
class PromptIds:
    """The ids of every row, in the file's order, each for ``tokens_per_id`` tokens of its prompt."""

    where: str
    name: str
    rows: list[bytes]
    id_bytes: int
    tokens_per_id: int
    covers_prompt: bool

    @property
    def counts(self) -> IntColumn:
        """Ids per row."""
        return np.array([len(row) // self.id_bytes for row in self.rows], np.int64)

    @property
    def block_tokens(self) -> int:
        """Tokens of a content block."""
        return TOKENS_PER_BLOCK if self.tokens_per_id == 1 else self.tokens_per_id

    def nodes(self, rows: IntColumn) -> Nodes:
        """The given rows as nodes of a radix tree, one per block."""
        per_node = self.block_tokens // self.tokens_per_id
        return interned(Lists([self.rows[i] for i in rows], self.id_bytes, per_node))

    def alike(self, rows: IntColumn) -> IntColumn:
        """A number for each of the given rows, equal where the lists are."""
        numbers: dict[bytes, int] = {}
        return np.array([numbers.setdefault(self.rows[i], len(numbers)) for i in rows], np.int64)

    def content(self, nodes: Nodes, num_prompt_tokens: IntColumn) -> Content:
        """What the prompts hold that the nodes stand for."""
        return blocks_of(nodes, num_prompt_tokens, self.block_tokens)


def prompt_ids(columns: dict[str, Column], dialect: Dialect) -> PromptIds | None:
    """The ids of a trace's prompts; None where no row has any. Raises TraceError naming a row that is no list of ids,
    or a block size that is none."""
    column = columns.get("content")
    if column is None:
        return None
    id_bytes = ID_BYTES[fold(column.name)]
    rows = id_rows(column, id_bytes)
    if not any(rows):
        return None
    tokens_per_id = _declared_block(columns["block_tokens"]) if "block_tokens" in columns else dialect.tokens_per_id
    return PromptIds(column.where, column.name, rows, id_bytes, tokens_per_id, dialect.covers_prompt)


def _declared_block(column: Column) -> int:
    """The one block size of a file."""
    sizes = column.whole_numbers(low=1, high=MAX_TOKENS_PER_BLOCK)
    column.refuse_unless(sizes == sizes[0], f"must be the same in every row, here {sizes[0]:,}")
    return int(sizes[0])


def without_misfits(ids: PromptIds, num_prompt_tokens: IntColumn, notes: list[str]) -> PromptIds:
    """Ids that are more than their prompt has blocks are left out, the rows counted in the notes; fewer are used as far
    as they go. Raises TraceError when most rows do not fit, for then it is the block size that is wrong."""
    counts, has_ids = ids.counts, ids.counts > 0
    too_many = counts > -(-num_prompt_tokens // ids.tokens_per_id)
    too_few = has_ids & (counts < num_prompt_tokens // ids.tokens_per_id) & ids.covers_prompt
    if 2 * int((too_many | too_few).sum()) > int(has_ids.sum()):
        i = int(np.argmax(too_many | too_few))
        raise refusal(
            ids.where,
            f"row {i + 1:,}: {ids.name}: must have an id per {ids.tokens_per_id:,} tokens of its prompt (got "
            f"{counts[i]:,} for {num_prompt_tokens[i]:,}, and most rows are so); name another format or block size",
        )
    counted(notes, ~has_ids, f"without {ids.name}: nothing is known of their prompts")
    counted(notes, too_many, f"with more {ids.name} than their prompt holds: nothing is known of their prompts")
    counted(notes, too_few, f"with fewer {ids.name} than their prompt holds: known as far as they go")
    rows = [b"" if odd else row for row, odd in zip(ids.rows, too_many, strict=True)]
    return PromptIds(ids.where, ids.name, rows, ids.id_bytes, ids.tokens_per_id, ids.covers_prompt)
