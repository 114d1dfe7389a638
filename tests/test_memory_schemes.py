"""Weight schemes: bits against the published formats, bytes exact, names that read back, one sentence for the rest."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import FootprintError
from simserve.memory.schemes import (
    GROUPS,
    SCALED_BITS,
    UNSCALED_BITS,
    WeightScheme,
    parse_scheme,
    scale_bits_per_row,
    scheme_of_bits,
    weight_bytes,
)

TEXTS = st.one_of(
    st.sampled_from([*UNSCALED_BITS, *SCALED_BITS, "int4:row", "int4:tensor", "int8:row", "int8:tensor"]),
    st.builds("{}:{}".format, st.sampled_from(list(SCALED_BITS)), st.integers(1, 2**20)),
    st.floats(0.1, 64).filter(lambda bits: "e" not in repr(bits)).map(repr),
)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("fp32", 32),
        ("fp16", 16),
        ("bf16", 16),
        ("fp8", 8),
        ("int8", 8),  # the chapters count int8 without scales
        ("int4", 4 + 16 / 128),  # the chapters' "groups of 128 (4.125 bits)"
        ("int4:64", 4 + 16 / 64),
        ("int4:32", 4.5),  # what GGUF's Q4_0 takes: 18 bytes for 32 weights
        ("int8:32", 8.5),  # Q8_0: 34 bytes for 32 weights
        ("int4:row", 4),
        ("nf4", 4.25),  # the chapters' "NF4 (4.25 bits)"
        ("4.125", 4.125),
        ("16", 16),
    ],
)
def test_bits_per_weight_are_the_format_s(text, bits):
    """Levels and the fp16 scale of each group, as the formats lay them out."""
    assert parse_scheme(text).bits_per_weight == bits


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int4:128", "int4"),
        ("NF4:64", "nf4"),
        ("int8:row", "int8"),
        (" BF16 ", "bf16"),
        ("float16", "fp16"),
        ("4.0", "4"),
        ("int4:064", "int4:64"),
    ],
)
def test_a_scheme_has_one_name(text, name):
    """Spellings of the same format give the same scheme, so that a profile's and a scenario's can be compared."""
    assert parse_scheme(text) == parse_scheme(name)
    assert parse_scheme(text).name == name


@given(TEXTS)
def test_names_read_back(text):
    """``parse_scheme(scheme.name)`` is the scheme."""
    scheme = parse_scheme(text)
    assert parse_scheme(scheme.name) == scheme


@given(TEXTS, st.integers(1, 10**13))
def test_bytes_are_bits_rounded_up(text, num_parameters):
    """The least whole number of bytes that holds levels and scales, in exact arithmetic at any size."""
    scheme = parse_scheme(text)
    got = weight_bytes(SimpleNamespace(num_parameters=num_parameters), scheme)
    need = num_parameters * (Fraction(str(scheme.bits)) + (Fraction(16, scheme.group_size) if scheme.group_size else 0))
    assert got - 1 < need / 8 <= got


def test_thirteen_billion_at_four_bits_and_an_eighth():
    """13·10⁹ · 4.125 / 8 bytes."""
    model = SimpleNamespace(num_parameters=13 * 10**9)
    assert weight_bytes(model, parse_scheme("int4")) == weight_bytes(model, parse_scheme("4.125")) == 6_703_125_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int5", "did you mean 'int8'?"),
        ("fp61", "did you mean 'fp16'?"),
        ("banana", "known: fp32"),
        ("", "unknown scheme ''"),
        ("0", "from 0.1 to 64 (got 0)"),
        ("128", "from 0.1 to 64 (got 128)"),
        ("nan", "unknown scheme"),
        ("1e3", "unknown scheme"),
        ("-4", "unknown scheme"),
        ("٤", "unknown scheme"),
        ("int4:0", "from 1 to 1048576, row or tensor (got '0')"),
        ("int4:99999999999999999999999", "from 1 to 1048576"),
        ("nf4:row", "from 1 to 1048576 (got 'row')"),
        ("int4:", "unknown scheme"),
        ("fp16:32", "unknown scheme"),
    ],
)
def test_what_is_no_scheme_is_one_sentence(text, said):
    """Says what is wrong, what was given, and what is known."""
    with pytest.raises(FootprintError) as error:
        parse_scheme(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(max_size=12))
def test_any_text_is_a_scheme_or_one_sentence(text):
    """Never another error."""
    with contextlib.suppress(FootprintError):
        assert isinstance(parse_scheme(text), WeightScheme)


@pytest.mark.parametrize("bits", [math.nan, math.inf, -1.0, 0.0, 1e-9, 65.0])
def test_impossible_bits_are_refused(bits):
    """Also those that compare with nothing."""
    with pytest.raises(FootprintError, match=r"bits per weight must be from 0\.1 to 64"):
        scheme_of_bits(bits)


def test_a_scale_per_row_is_worth_nothing():
    """A hundredth of a bit at 1,600 weights a row: why int8 has no group and its scales are not counted."""
    assert scale_bits_per_row(4096) == 16 / 4096
    assert scale_bits_per_row(1600) <= 0.01
    assert GROUPS["int8"] is None
