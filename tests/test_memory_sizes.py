"""Sizes are read and written in the unit that is given: GB and GiB are never taken for one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.memory.sizes import is_decimal, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "num_bytes", "decimal"),
    [
        ("8GiB", 8 * 2**30, False),
        ("8GB", 8 * 10**9, True),
        ("1.5 gib", 3 * 2**29, False),
        ("768MiB", 768 * 2**20, False),
        ("2TB", 2 * 10**12, True),
        ("100B", 100, False),
    ],
)
def test_the_unit_given_is_the_unit_read(text, num_bytes, decimal):
    """A gibibyte is 2³⁰ bytes, a gigabyte 10⁹, by IEC 80000-13."""
    assert parse_size(text) == num_bytes
    assert is_decimal(text) is decimal


@pytest.mark.parametrize("text", ["8", "8G", "8iB", "GiB", "-1GiB", "1e3MB", "8 GiB 2", ""])
def test_a_size_without_a_whole_unit_is_refused(text):
    """A bare number or a bare ``G`` could mean either."""
    with pytest.raises(ValueError, match=r"8GiB .* or 8GB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "decimal", "text"),
    [
        (768 * 2**20, False, "768 MiB"),  # as the chapters write it
        (8 * 2**30, False, "8.000 GiB"),
        (8 * 2**30, True, "8.590 GB"),
        (12_288, False, "12.0 KiB"),
        (86_016, False, "84.0 KiB"),
        (12_288, True, "12.3 KB"),
        (141 * 2**30, False, "141 GiB"),
        (819, False, "819 B"),
        (0, False, "0 B"),
        (-(2**31), False, "-2.000 GiB"),
    ],
)
def test_sizes_read_well(num_bytes, decimal, text):
    """Three digits or more, and always a unit."""
    assert size_text(num_bytes, decimal) == text


@given(st.integers(1, 2**50), st.booleans())
def test_what_is_written_reads_back(num_bytes, decimal):
    """Within the rounding of three digits."""
    back = parse_size(size_text(num_bytes, decimal).replace(",", ""))
    assert abs(back - num_bytes) <= 0.0051 * num_bytes
