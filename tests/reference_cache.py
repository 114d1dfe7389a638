"""The two caches of the reference engine, as literally as can be: blocks per sequence, and a row of cells."""

from __future__ import annotations

import math


class BlockCounter:
    """Paged: how many blocks each sequence holds, counted afresh each time it is asked."""

    def __init__(self, num_blocks: int, block_size: int, watermark: float, null_blocks: int) -> None:
        self.usable = num_blocks - null_blocks
        self.block_size = block_size
        self.watermark_blocks = int(watermark * self.usable)
        self.held: dict[int, int] = {}

    def blocks(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.block_size)

    @property
    def free(self) -> int:
        return self.usable - sum(self.held.values())

    @property
    def reserved_tokens(self) -> int:
        return sum(self.held.values()) * self.block_size

    def missing(self, seq_id: int, num_tokens: int) -> int:
        """Blocks that ``seq_id`` lacks to hold ``num_tokens`` in all."""
        return max(0, self.blocks(num_tokens) - self.held.get(seq_id, 0))

    def fits_new(self, num_tokens: int, spare_blocks: int = 0) -> bool:
        return self.blocks(num_tokens) + spare_blocks <= self.free - self.watermark_blocks

    def take(self, seq_id: int, num_tokens: int) -> None:
        self.held[seq_id] = self.held.get(seq_id, 0) + self.missing(seq_id, num_tokens)
        assert self.free >= 0, f"sequence {seq_id} took blocks that do not exist"

    def release(self, seq_id: int) -> int:
        return self.held.pop(seq_id)


class CellRow:
    """Contiguous: a row of one cell per token; each cell names its owner. First fit, cell by cell."""

    def __init__(self, num_cells: int) -> None:
        self.cells: list[int | None] = [None] * num_cells

    @property
    def free(self) -> int:
        return self.cells.count(None)

    @property
    def reserved_tokens(self) -> int:
        return len(self.cells) - self.free

    def holes(self) -> list[tuple[int, int]]:
        """(start, length) of every run of free cells, from the lowest address."""
        found, start = [], None
        for i, owner in enumerate([*self.cells, -1]):
            if owner is None and start is None:
                start = i
            elif owner is not None and start is not None:
                found.append((start, i - start))
                start = None
        return found

    def first_fit(self, length: int) -> int | None:
        return next((start for start, size in self.holes() if size >= length), None)

    def place(self, seq_id: int, length: int) -> int:
        start = self.first_fit(length)
        assert start is not None, f"no hole of {length} cells for sequence {seq_id}"
        self.cells[start : start + length] = [seq_id] * length
        return start

    def release(self, seq_id: int) -> None:
        self.cells = [None if owner == seq_id else owner for owner in self.cells]
