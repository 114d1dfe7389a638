"""Operator tables as data frames: reading them with one-sentence errors, and looking operators up by size."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from calibrate.importers.step_csv import read_text
from simserve.errors import ProfileError

_MAX_ROWS = 2_000_000


def read_table(path: Path, columns: Sequence[str], numeric: Sequence[str]) -> pd.DataFrame:
    """A csv (gzipped or not) with at least ``columns``, those of ``numeric`` finite and not negative. Raises
    ``ProfileError``."""
    text = read_text(path)
    try:
        table = pd.read_csv(io.StringIO(text), nrows=_MAX_ROWS)
    except (ValueError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ProfileError(f"{path}: is not csv ({str(error).strip().splitlines()[0]})") from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        found = ", ".join(str(column) for column in table.columns[:12]) or "nothing"
        raise ProfileError(f"{path}: must have the columns {', '.join(missing)} (got {found})")
    for column in numeric:
        values = pd.to_numeric(table[column], errors="coerce")
        bad = ~np.isfinite(values.to_numpy(dtype=float, na_value=np.nan)) | (values < 0).to_numpy()
        if bad.any():
            line = int(np.argmax(bad))
            raise ProfileError(
                f"{path}: line {line + 2}: {column}: must be a number ≥ 0 (got {str(table[column].iloc[line])!r})"
            )
        table[column] = values
    if table.empty:
        raise ProfileError(f"{path}: must hold at least one row (got none)")
    return table


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
