"""Operator tables as data frames: one column per operator, and looking operators up by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simserve.errors import ProfileError


def wide(table: pd.DataFrame, index: str, columns: str, value: str, path: Path, names: Sequence[str]) -> pd.DataFrame:
    """One column per operator over sizes, medians of repeats. Raises ``ProfileError`` if one of ``names`` lacks."""
    found = table.pivot_table(index=index, columns=columns, values=value, aggfunc="median")
    missing = [name for name in names if name not in found.columns]
    if missing:
        raise ProfileError(f"{path}: must have the operators {', '.join(missing)} (got {', '.join(map(str, found))})")
    return found.interpolate("index", limit_area="inside")


def total_at(table: pd.DataFrame, names: Sequence[str], sizes: pd.Series) -> pd.Series:
    """The sum of the operators ``names``, each interpolated between the sizes that were measured."""
    parts = (pd.Series(np.interp(sizes, table.index, table[name]), sizes.index) for name in names)
    return sum(parts, pd.Series(0.0, sizes.index))
