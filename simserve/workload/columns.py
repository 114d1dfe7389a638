"""A column of a trace, as text or as numbers, to whole numbers; the first row that breaks a rule is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from simserve.request import IntColumn
from simserve.workload.refusal import refusal

MAX_LENGTH = 2**31 - 1

FloatColumn = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """One column of a file: ``where`` (the file) and ``name`` begin every message. Rows count from 1, header aside."""

    where: str
    name: str
    data: pd.Series[Any]

    def whole_numbers(self, low: int = 0, high: int = MAX_LENGTH, missing: int | None = None) -> IntColumn:
        """The values as integers within [low, high]; empty cells become ``missing``, or are refused when it is None.
        Raises TraceError naming the first row and value that break a rule."""
        numbers = self.numbers()
        if missing is not None:
            numbers = np.where(self.is_missing(), missing, numbers)
        fits = (numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))  # false for NaN
        self.refuse_unless(fits, f"must be a whole number from {low:,} to {high:,}")
        return numbers.astype(np.int64)

    def numbers(self) -> FloatColumn:
        """The values as floats; NaN where there is no number."""
        kind = self.data.dtype.kind if isinstance(self.data.dtype, np.dtype) else "O"
        if kind in "iuf":
            return np.asarray(self.data, np.float64)
        text = self.text()
        digits = _digits(text)
        return np.asarray(pd.to_numeric(text, errors="coerce"), np.float64) if digits is None else digits

    def text(self) -> pd.Series[str]:
        """The values as text without spaces around, empty where there is none."""
        try:
            text = self.data.astype(str)
        except UnicodeDecodeError:  # a parquet column of bytes
            text = self.data.map(repr).astype(str)
        return text.mask(self.data.isna(), "").str.strip()

    def is_missing(self) -> npt.NDArray[np.bool_]:
        """Rows without a value: null, or an empty cell. Text such as NaN is a value, and a wrong one."""
        kind = self.data.dtype.kind if isinstance(self.data.dtype, np.dtype) else "O"
        return self.data.isna().to_numpy() if kind in "iufM" else (self.text() == "").to_numpy(bool)

    def filled(self, rows: npt.NDArray[np.bool_]) -> Column:
        """The column with 0 in the given rows, whose values do not matter."""
        kind = self.data.dtype.kind if isinstance(self.data.dtype, np.dtype) else "O"
        return replace(self, data=self.data.mask(rows, 0 if kind in "iuf" else "0")) if rows.any() else self

    def refuse_unless(self, fits: npt.NDArray[np.bool_], rule: str) -> None:
        """Raise TraceError when a row does not fit, naming the first, its value, and how many more there are."""
        if fits.all():
            return
        row = int(np.argmin(fits))
        value = str(self.data.iloc[row])
        shown = repr(value if len(value) <= 40 else value[:37] + "…") if value else "an empty cell"
        num_others = int((~fits).sum()) - 1
        others = f", and {num_others:,} more" if num_others else ""
        raise refusal(self.where, f"row {row + 1:,}: {self.name}: {rule} (got {shown}{others})")


def _digits(text: pd.Series[str]) -> FloatColumn | None:
    """The numbers of a column that is nothing but digits and signs, as most are, a few times as fast as pandas; None
    for any other."""
    if getattr(text.dtype, "storage", "") != "pyarrow":
        return None
    import pyarrow as pa
    from pyarrow import compute

    cells = pa.array(text)
    if not compute.all(compute.match_substring_regex(cells, r"\A-?[0-9]{1,15}\z")).as_py():
        return None
    return np.asarray(compute.cast(cells, pa.int64()).to_numpy(zero_copy_only=False), np.float64)
