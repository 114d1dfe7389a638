"""Decodes of unequal context: the share alpha from rows whose answer is known, and how files without it are read."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ProfileError
from simserve.step_time.operators import load_operators
from simserve.step_time.operators.skew import SkewTable, _Nearest, fit_skew, read_skew
from tests.operator_builders import SPEC, write_llmservingsim

COLUMNS = ("n", "pc", "kp", "t_mean_us", "t_max_us", "t_skew_us", "alpha")


def rows(*lines: tuple[float, ...]) -> pd.DataFrame:
    return pd.DataFrame([(*line, None) for line in lines], columns=list(COLUMNS))


def test_alpha_is_what_the_rows_say() -> None:
    """100 µs at the mean and 200 at the longest, 125 with both kinds: a quarter; beside a prefill another share."""
    table = fit_skew(rows((4, 0, 0, 100, 200, 125), (4, 64, 512, 100, 200, 160), (16, 0, 0, 100, 300, 110)))
    assert table.alpha(4) == pytest.approx(0.25)
    assert table.alpha(16) == pytest.approx(0.05)
    assert table.alpha(8) == pytest.approx(0.15)  # half way between 4 and 16 in the logarithm
    assert table.alpha(2) == pytest.approx(0.25)  # held at the ends
    assert table.alpha(512) == pytest.approx(0.05)
    assert table.alpha(4, 64, 512) == pytest.approx(0.6)
    assert table.alpha(4, 2000, 0) == pytest.approx(0.6)  # of the only prefill measured


def test_of_a_table_with_holes_the_nearest_measured() -> None:
    """64 tokens were timed over 512 cached ones alone: over none, that share and not that of other tokens, nor zero."""
    table = fit_skew(rows((4, 64, 512, 100, 200, 160), (4, 16, 0, 100, 200, 130)))
    assert table.alpha(4, 64, 0) == table.alpha(4, 40, 9000) == pytest.approx(0.6)
    assert table.alpha(4, 16, 512) == table.alpha(4, 1, 0) == pytest.approx(0.3)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8, unique=True), st.floats(0, 10_000))
def test_nearest_in_ratio(known: list[int], value: float) -> None:
    """Against the definition: no other measured value is nearer, with 16 added to both."""
    found = _Nearest(known).to(value)
    assert found in known
    off = [abs(math.log((each + 16) / (value + 16))) for each in known]
    assert abs(math.log((found + 16) / (value + 16))) == pytest.approx(min(off), abs=1e-12)


def saturating_us(contexts: list[int], busy: float) -> float:
    """Decodes that start together on a device that gets through a/(a + busy) tokens a microsecond while a are left."""
    total, done = 0.0, 0
    for i, context in enumerate(sorted(contexts)):
        left = len(contexts) - i
        total += (context - done) * left / (left / (left + busy))
        done = context
    return total


@given(st.lists(st.integers(1, 10_000), min_size=4, max_size=4), st.floats(0.1, 100.0))
def test_on_a_device_that_saturates_the_rule_is_exact(contexts: list[int], busy: float) -> None:
    """Theory: alpha of decodes of two kinds, as the files have them, tells the time of four of any lengths."""
    two_kinds = saturating_us([100, 100, 100, 400], busy), saturating_us([100, 100, 400, 400], busy)
    at = [saturating_us([context] * 4, busy) for context in (175, 250, 400)]
    table = fit_skew(rows((4, 0, 0, at[0], at[2], two_kinds[0]), (4, 0, 0, at[1], at[2], two_kinds[1])))
    mean, longest = saturating_us([1] * 4, busy) * sum(contexts) / 4, saturating_us([max(contexts)] * 4, busy)
    predicted = mean + table.alpha(4) * (longest - mean)
    assert predicted == pytest.approx(saturating_us(contexts, busy), rel=1e-9)


def test_rows_that_say_nothing_weigh_nothing() -> None:
    """Where the longest costs no more than the mean, alpha is empty in the files, and a huge one here would mislead."""
    silent = ((4, 0, 0, 100, 100, 180), (4, 0, 0, 100, 99.9, 150), (4, 0, 0, 100, 100.001, 150))
    assert fit_skew(rows((4, 0, 0, 100, 200, 125), *silent)).alpha(4) == pytest.approx(0.25)
    assert fit_skew(rows(*silent[:2])).alpha(4) == 0.0


@given(
    st.lists(
        st.tuples(st.sampled_from([2, 4, 64]), st.sampled_from([0, 16, 512]), st.just(0), *[st.floats(1.0, 1e5)] * 3),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 1000),
    st.integers(0, 4000),
    st.floats(-2000, 20_000),
)
def test_alpha_is_a_share(lines: list[tuple[float, ...]], decodes: int, tokens: int, context: float) -> None:
    """Whatever was timed, the answer lies between the time at the mean and the time at the longest."""
    assert 0.0 <= fit_skew(rows(*lines)).alpha(decodes, tokens, context) <= 1.0


def test_nothing_measured_is_the_mean() -> None:
    """No rows, no skew."""
    assert SkewTable({}).alpha(7, 5, 3.0) == 0.0


def test_a_profile_may_have_the_table(tmp_path: Path) -> None:
    """``skew.csv`` beside the others is read, counts in the digest, and its absence is no error; a broken one is."""
    folder = write_llmservingsim(tmp_path / "x")
    before = load_operators(folder, SPEC)
    assert before.skew is None
    path = folder / "tp1" / "skew.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, (4, 0, 0, 100, 200, 125, 0.25), (4, 0, 0, 100, 99, 125, "")])
    after = load_operators(folder, SPEC)
    assert after.skew is not None and after.skew.alpha(4) == pytest.approx(0.25)
    assert after.origin.digest != before.origin.digest
    path.write_text("n,pc\n1,2\n")
    with pytest.raises(
        ProfileError, match=r"skew.csv: must have the columns kp, t_mean_us, t_max_us, t_skew_us \(got n"
    ):
        read_skew(path)
