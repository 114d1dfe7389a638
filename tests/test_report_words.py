"""Numbers in words: the unit that suits, three digits, never a false zero or a false hundred."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.report.words import (
    count,
    dig,
    duration,
    grouped,
    joined,
    magnitude,
    number,
    plural,
    ratio,
    share,
    significant,
    times,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (4.2e-6, "4.20 µs"),
        (0.0123, "12.3 ms"),
        (1.0, "1.00 s"),
        (95.94, "95.9 s"),
        (3504.0, "58.4 min"),
        (7200.0, "2.00 h"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds, text):
    """µs below a millisecond, ms below a second, minutes from ten of them, hours from two."""
    assert duration(seconds).replace("\u00a0", " ") == text


def test_a_number_and_its_unit_stay_on_one_line():
    """No line may break between 27.6 and its percent sign."""
    assert " " not in duration(1.5) + share(0.276)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1, "100 %"), (0.276, "27.6 %"), (0.5, "50 %"), (1e-5, "< 0.1 %"), (0.99999, "> 99.9 %"), (None, "–")],
)
def test_a_share_is_never_rounded_to_nothing_or_all(value, text):
    """0 % and 100 % mean exactly that."""
    assert share(value).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.6179, "1.62×"), (0.1099, "0.11×"), (0.0432, "0.043×"), (28.81, "28.8×")]
)
def test_ratios_keep_two_or_three_digits(value, text):
    """Small ones as well as large."""
    assert times(value) == text


@given(st.floats(1e-9, 1e12))
def test_significant_digits_are_within_half_a_percent(value):
    """Three digits are off by at most 0.5 %, and large numbers keep all their whole digits."""
    assert float(significant(value).replace(",", "")) == pytest.approx(value, rel=5e-3)


def test_counts_and_numbers():
    """Thousands separated; what is missing is a dash."""
    assert (count(1234567.0), number(1386.4), count(None), number(None)) == ("1,234,567", "1,386", "–", "–")


def test_digging_finds_numbers_only():
    """A null, a missing key, a text and a NaN are all nothing."""
    summary = {"a": {"b": 2, "none": None, "nan": math.nan}, "word": "x"}
    assert dig(summary, "a.b") == 2.0
    assert [dig(summary, path) for path in ("a.none", "a.nan", "a.c.d", "word", "zzz")] == [None] * 5


def test_a_ratio_needs_both_numbers_and_a_positive_base():
    """Nothing is divided by nothing."""
    assert ratio(3.0, 2.0) == 1.5
    assert [ratio(None, 2.0), ratio(1.0, None), ratio(1.0, 0.0)] == [None] * 3


def test_lists_in_words():
    """Commas, and an "and" before the last."""
    assert [joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [plural(1, "request"), plural(1200, "request")] == ["1 request", "1,200 requests"]


def test_names_with_the_same_figure_are_named_together():
    """Two variants that agree take one clause; a lone variant goes without saying; a long list is cut."""
    assert grouped({"a": "1 s", "b": "2 s", "c": "1 s"}) == "1 s with a and c; 2 s with b"
    assert grouped({"a": "1 s"}) == "1 s"
    assert (
        grouped({str(i): f"{i} s" for i in range(5)}, limit=2)
        == "0 s with 0; 1 s with 1; the others stand in the table"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (163_712, "163,712"),
        (2.5e6, "2.50 million"),
        (3.22e11, "322 billion"),
        (6.09e13, "60.9 trillion"),
        (4.0e20, "400 quintillion"),
    ],
)
def test_large_numbers_have_names(value, text):
    """Three digits and the word of their size, in thousands of millions."""
    assert magnitude(value).replace("\u00a0", " ") == text
