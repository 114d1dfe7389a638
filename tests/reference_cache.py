"""The contiguous cache of the reference engine, as literally as can be: a row of cells; and no cache at all."""

from __future__ import annotations


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


class NoRow(CellRow):
    """None: nothing is kept of anybody, so everybody fits."""

    def __init__(self) -> None:
        super().__init__(0)

    def first_fit(self, length: int) -> int | None:
        return 0

    def place(self, seq_id: int, length: int) -> int:
        return 0
