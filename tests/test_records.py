"""Rows of integers come back as they were put in, whatever their size and however many, in little memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.records import OccupancyRecords, RowBuffer, SpanRecords

_LIMITS = [0, -1, 1, *(edge + side for bits in (7, 15, 31) for edge in (2**bits, -(2**bits)) for side in (-1, 0, 1))]
_NUMBERS = st.sampled_from([*_LIMITS, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
_ROWS = st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=6)


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.tuples(st.booleans(), _ROWS), max_size=6), block_rows=st.integers(1, 4), reads=st.booleans())
def test_rows_come_back_as_they_were_put_in(parts, block_rows, reads):
    """One by one or many at once, in blocks of any length, read in between or not: every integer of 64 bits, in order
    (a list of tuples is the reference)."""
    buffer, expected = RowBuffer(2, block_rows), []
    for at_once, rows in parts:
        if at_once:
            buffer.append_all(np.array(rows, np.int64).reshape(-1, 2))
        for row in () if at_once else rows:
            buffer.append(row)
        expected += rows
        assert len(buffer) == len(expected)
        if reads:
            assert buffer.column(1).tolist() == [row[1] for row in expected]
    assert [buffer.column(i).dtype for i in (0, 1)] == [np.int64, np.int64]
    assert list(zip(buffer.column(0).tolist(), buffer.column(1).tolist(), strict=True)) == expected


def test_a_column_is_a_copy():
    """Who changes what they were given changes nobody else's."""
    buffer = RowBuffer(1)
    buffer.append([7])
    buffer.column(0)[0] = 8
    assert buffer.column(0).tolist() == [7]


def test_small_numbers_take_little_memory():
    """A million rows of 21 numbers, two of them times and the others under 30,000: 8 + 8 + 19 · 2 bytes each, and not
    21 · 8. What is used while they are put in is bounded by a block."""
    width, block = len(SpanRecords.COLUMNS), 1 << 15
    rows = np.random.default_rng(0).integers(0, 30_000, (block, width))
    rows[:, :2] += 1 << 40
    tracemalloc.start()
    buffer = RowBuffer(width, block)
    num_blocks = 1_000_000 // block
    for _ in range(num_blocks):
        buffer.append_all(rows)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    bytes_per_row = 2 * 8 + (width - 2) * 2
    assert held < 1.02 * len(buffer) * bytes_per_row
    assert peak < held + 4 * block * width * 8


def test_columns_are_named_and_put_together_when_asked_for():
    """The mapping has every column of a span under its name, knows its names without making one, and no others."""
    spans = SpanRecords()
    spans.rows.append(range(len(SpanRecords.COLUMNS)))
    columns = spans.columns()
    assert tuple(columns) == SpanRecords.COLUMNS and len(columns) == len(SpanRecords.COLUMNS)
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: [i] for i, name in enumerate(SpanRecords.COLUMNS)
    }
    assert "num_steps" in columns and "num_running" not in columns
    with pytest.raises(KeyError):
        columns["num_running"]


def test_occupancy_is_in_order_of_admission_then_request():
    """Rows are written at release; ``columns`` sorts them, ``as_released`` does not."""
    occupancy = OccupancyRecords()
    rows = [(5, 1, 30, 31, 32, 33), (2, 0, 10, 11, 12, 40), (1, 2, 10, 13, 14, 50)]
    for row in rows:
        occupancy.rows.append(row)
    assert occupancy.as_released()["request_id"].tolist() == [5, 2, 1]
    sorted_rows = list(zip(*(column.tolist() for column in occupancy.columns().values()), strict=True))
    assert sorted_rows == [rows[2], rows[1], rows[0]]
    assert [column.size for column in OccupancyRecords().columns().values()] == [0] * 6
