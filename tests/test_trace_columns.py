"""Columns of text to numbers: the quick ways give what the slow ones give."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import TraceError
from simserve.workload.columns import Column
from simserve.workload.timestamps import UNITS, elapsed_ns

briefly = settings(deadline=None, max_examples=150)
WRITTEN = st.one_of(
    st.integers(-(10**18), 10**18).map(str),
    st.floats(allow_nan=True).map(str),
    st.sampled_from(["", "0x10", "+5", "007", "1_000", "٣", "-", "5\n6", "1e3", " 4 ", "5.", "-0"]),
)
WHOLE = st.integers(-(10**9), 10**10).map(str)


def column(cells: list[str]) -> Column:
    return Column("t", "x", pd.Series(cells, dtype=str))


@briefly
@given(st.lists(WRITTEN, min_size=1, max_size=8) | st.lists(WHOLE, min_size=1, max_size=8))
def test_numbers_are_those_of_pandas(cells: list[str]) -> None:
    """Law: whatever the cells hold, the numbers (and what is none) are pandas' own, digits alone or not."""
    expected = pd.to_numeric(pd.Series([cell.strip() for cell in cells], dtype=object), errors="coerce")
    assert np.array_equal(column(cells).numbers(), expected.to_numpy(np.float64), equal_nan=True)


@briefly
@given(
    st.lists(
        st.tuples(st.integers(0, 2 * 10**9), st.sampled_from(["", ".", ".0", ".000", ".000000001", "e0"])), min_size=1
    )
)
def test_times_are_exact_however_they_are_written(parts: list[tuple[int, str]]) -> None:
    """Law: seconds since 1970, whole or a nanosecond later, to nanoseconds digit by digit."""
    cells = [f"{seconds}{end}" for seconds, end in parts]
    expected = [int(Decimal(cell) * 10**9) for cell in cells]
    assert elapsed_ns(column(cells), UNITS["seconds"]).tolist() == expected


def test_nanoseconds_beyond_a_float_are_exact() -> None:
    """61 bits: a whole number, and yet no float holds it."""
    cells = ["1700000000123456789", "1700000000123456790"]
    assert elapsed_ns(column(cells), UNITS["nanoseconds"]).tolist() == [int(cell) for cell in cells]


@pytest.mark.parametrize("cell", ["0x10", "1_000", "٣"])
def test_what_python_or_arrow_take_for_a_number_is_none(cell: str) -> None:
    """Hexadecimal, underscores and other scripts' digits are refused, in a column of digits, too."""
    with pytest.raises(TraceError, match=r"^t: row 2: x: must be a whole number"):
        column(["1", cell]).whole_numbers()
