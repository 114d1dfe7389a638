"""Operator tables from files: which of them a folder holds, and their rows with one-sentence errors."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simserve.errors import ProfileError

if TYPE_CHECKING:
    import pandas as pd

_MAX_ROWS = 2_000_000


def find_file(folder: Path, name: str) -> Path | None:
    """``name`` or ``name.gz`` in a folder, whichever is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises ``ProfileError``."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror})") from error


def read_text(path: Path) -> str:
    """The text of a file, unpacked if it is gzipped, without a byte order mark. Raises ``ProfileError``."""
    content = read_bytes(path)
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (OSError, EOFError, ValueError) as error:
        raise ProfileError(f"{path}: is not text in UTF-8 or gzip ({error})") from error
    except Exception as error:  # zlib's own error is none of these
        raise ProfileError(f"{path}: cannot be unpacked ({error})") from error


def read_table(path: Path, columns: Sequence[str], numeric: Sequence[str]) -> pd.DataFrame:
    """A csv with at least ``columns``, those of ``numeric`` finite and not negative. Raises ``ProfileError``."""
    import pandas as pd

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
        values = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        bad = ~np.isfinite(values) | (values < 0)
        if bad.any():
            line = int(np.argmax(bad))
            got = str(table[column].iloc[line])
            raise ProfileError(f"{path}: line {line + 2}: {column}: must be a number ≥ 0 (got {got!r})")
        table[column] = values
    if table.empty:
        raise ProfileError(f"{path}: must hold at least one row (got none)")
    return table


def read_operators(path: Path, size: str, names: Sequence[str]) -> pd.DataFrame:
    """``layer, <size>, time_us`` as one column per operator over sizes, medians of repeats; an operator that was not
    measured at a size lies between its others, or the size is left out. Raises ``ProfileError`` if one lacks."""
    table = read_table(path, ("layer", size, "time_us"), (size, "time_us"))
    found = table.pivot_table(index=size, columns="layer", values="time_us", aggfunc="median")
    missing = [name for name in names if name not in found.columns]
    if missing:
        raise ProfileError(f"{path}: must have the operators {', '.join(missing)} (got {', '.join(map(str, found))})")
    return found[list(names)].interpolate("index", limit_area="inside").dropna()


def digest_of(paths: Sequence[Path]) -> str:
    """SHA-256 over the names and contents of files."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.name.encode() + b"\0" + hashlib.sha256(read_bytes(path)).digest())
    return total.hexdigest()
