"""Decodes of unequal context: the share alpha from rows whose answer is known, and how files without it are read."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ProfileError
from simserve.step_time.operators import load_operators
from simserve.step_time.operators.skew import SkewTable, _Nearest, fit_skew, read_skew
from simserve.step_time.operators.splits import unsplit_from
from tests.operator_builders import SPEC, write_llmservingsim

COLUMNS = ("n", "pc", "kp", "t_mean_us", "t_max_us", "t_skew_us", "alpha")


def rows(*lines: tuple[float, ...]) -> pd.DataFrame:
    return pd.DataFrame([(*line, None) for line in lines], columns=list(COLUMNS))


def test_alpha_is_what_the_rows_say() -> None:
    """100 µs at the mean and 200 at the longest, 125 with both kinds: a quarter; beside a prefill another share.
    Between and beyond, alpha = s/(n + s) with s linear in the logarithm of n: 4/3 of 4 decodes and 16/19 of 16."""
    table = fit_skew(rows((4, 0, 0, 100, 200, 125), (4, 64, 512, 100, 200, 160), (16, 0, 0, 100, 300, 110)))
    assert table.alpha(4) == pytest.approx(0.25)
    assert table.alpha(16) == pytest.approx(0.05)
    half_way = (4 / 3 + 16 / 19) / 2
    assert table.alpha(8) == pytest.approx(half_way / (8 + half_way))
    assert table.alpha(2) == pytest.approx(4 / 3 / (2 + 4 / 3))  # what keeps memory busy is held at the ends
    assert table.alpha(512) == pytest.approx(16 / 19 / (512 + 16 / 19))
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


def saturating_us(contexts: Sequence[float], busy: float) -> float:
    """Decodes that start together on a device that gets through a/(a + busy) tokens a microsecond while a are left."""
    total, done = 0.0, 0.0
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


@given(st.floats(0.01, 50.0), st.integers(1, 4096))
def test_what_keeps_memory_busy_does_not_change_with_decodes(busy: float, decodes: int) -> None:
    """Theory: on a device that saturates, alpha of two numbers of decodes tells that of any other: s/(n + s)."""
    lines = []
    for n in (4, 32):
        contexts = [100] * (n - 1) + [400]
        mean, longest = (saturating_us([c] * n, busy) for c in (sum(contexts) / n, 400))
        lines.append((n, 0, 0, mean, longest, saturating_us(contexts, busy)))
    assert fit_skew(rows(*lines)).alpha(decodes) == pytest.approx(busy / (decodes + busy), rel=1e-6)


@given(st.integers(5, 256), st.integers(1, 400))
def test_split_contexts_say_nothing_of_whole_ones(border: int, decodes: int) -> None:
    """Below ``unsplit_from`` only what was timed below it counts, and above it what was timed there; beside a prefill
    nothing is split."""
    lines = (4, 0, 0, 100, 200, 100), (256, 0, 0, 100, 200, 102), (4, 64, 0, 100, 200, 150)
    table = fit_skew(rows(*lines), border)
    busy = 0.0 if decodes < border else 256 * 0.02 / 0.98
    assert table.alpha(decodes) == pytest.approx(busy / (decodes + busy))
    assert table.alpha(4, 64, 0) == pytest.approx(0.5)


@given(st.integers(1, 4), st.integers(1, 400))
def test_a_side_on_which_nothing_was_timed_answers_as_the_other(border: int, decodes: int) -> None:
    """All was timed where contexts are whole: fewer decodes than that are taken to be like them."""
    table = fit_skew(rows((4, 0, 0, 100, 200, 120), (16, 0, 0, 100, 200, 105)), border)
    assert table.alpha(decodes) == fit_skew(rows((4, 0, 0, 100, 200, 120), (16, 0, 0, 100, 200, 105))).alpha(decodes)


def test_where_splitting_ends() -> None:
    """FlashAttention-2's rule by hand: 8 KV heads of n decodes are 0.8 · 2 · 128 = 204.8 blocks from n = 26 on."""
    assert unsplit_from("NVIDIA GeForce RTX 4090", 8) == 26
    assert unsplit_from("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 8) == 38  # 300.8
    assert unsplit_from("NVIDIA A100-SXM4-80GB", 1) == 173  # 172.8
    assert unsplit_from("NVIDIA H100 80GB HBM3", 8) is None  # version 3 splits by another rule
    assert unsplit_from("NVIDIA L40", 8) is None


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
