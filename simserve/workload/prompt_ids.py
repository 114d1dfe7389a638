"""Lists of ids in a trace (block hashes, token ids), as JSON, csv and parquet hold them, to the bytes of arrays.

An id may stand for its block alone or, as a chained hash, for all up to its end: only whole lists are compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from simserve.workload.columns import Column

HASH_BYTES, TOKEN_BYTES = 8, 4
ID_BYTES: Mapping[str, int] = {"hashids": HASH_BYTES, "prefixhashes": HASH_BYTES, "inputtokids": TOKEN_BYTES}
_DTYPES = {HASH_BYTES: (np.dtype("<i8"), np.dtype("<u8")), TOKEN_BYTES: (np.dtype("<u4"),)}
_RULES = {
    HASH_BYTES: "must be a list of whole numbers of at most 64 bits",
    TOKEN_BYTES: "must be a list of whole numbers from 0 to 4,294,967,295",
}
_WRITTEN = re.compile(r"\[?[-+0-9\s,;]*\]?", re.ASCII)


class IdBytes(bytes):
    """A list of ids that was read: one little-endian integer of ``HASH_BYTES`` or ``TOKEN_BYTES`` per id."""


def packed(values: list[Any], id_bytes: int) -> IdBytes | None:
    """A list as bytes, or None when it holds what is no such id. Of a hash, the 64 bits are kept, whether it is written
    with a sign or without."""
    if set(map(type, values)) <= {int}:
        for dtype in _DTYPES[id_bytes]:
            try:
                return IdBytes(np.array(values, dtype).tobytes())
            except OverflowError:
                continue
    return None


def id_rows(column: Column, id_bytes: int) -> list[bytes]:
    """One list per row, empty where there is none: lists of JSON and parquet, and in csv numbers between commas, spaces
    or semicolons, with or without brackets. Raises TraceError naming the first row that is no list of ids."""
    missing = column.data.isna().to_numpy(bool)
    rows = [b"" if no_list else _row(cell, id_bytes) for cell, no_list in zip(column.data, missing, strict=True)]
    column.refuse_unless(np.array([row is not None for row in rows], bool), _RULES[id_bytes])
    return [row or b"" for row in rows]


def _row(cell: object, id_bytes: int) -> bytes | None:
    """One cell, whatever its form."""
    if isinstance(cell, IdBytes):
        return cell
    if isinstance(cell, str) and _WRITTEN.fullmatch(cell):
        try:
            return packed([int(number) for number in re.split(r"[\s,;]+", cell.strip("[], \t;")) if number], id_bytes)
        except ValueError:  # signs without digits, or digits by the thousand
            return None
    if isinstance(cell, np.ndarray) and cell.ndim == 1:
        return packed(cell.tolist(), id_bytes)
    return packed(cell, id_bytes) if isinstance(cell, list) else None
