"""Rows of a trace that are not as they should be, counted in the notes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def counted(notes: list[str], rows: npt.NDArray[np.bool_], what: str) -> None:
    """Add a note of how many rows are so, if any."""
    num_rows = int(rows.sum())
    if num_rows:
        notes.append(f"{num_rows:,} {'row' if num_rows == 1 else 'rows'} {what}")
