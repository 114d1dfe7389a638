"""The laws of an interpolated step-time surface: exact where measured, between its neighbours inside, flagged and
monotone outside, and ramps that are the surface itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.step_time.profile_schema import Table
from simserve.step_time.stretch import UNBOUNDED
from simserve.step_time.surface import Curve, Surface
from tests.profile_builders import affine, make_table

CONTEXTS = (1, 16, 128, 512, 2048)
ROWS = (1, 2, 4, 8, 16, 32, 64)
seconds = st.floats(1e-5, 10.0)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any measurement: values in no order at all, rows that reach differently far."""
    rows = draw(st.lists(st.integers(1, 300), min_size=2, max_size=5, unique=True))
    contexts = st.lists(st.integers(0, 3000), min_size=2, max_size=5, unique=True)
    return make_table({row: {c: draw(seconds) for c in draw(contexts)} for row in rows})


@given(tables(), st.sampled_from(["flat", "linear"]))
def test_measured_points_come_back_exactly_and_unflagged(table: Table, below: str) -> None:
    """At a measured (row, context) the surface is the measurement, bit for bit."""
    surface = Surface(table, below)
    for row in table.rows:
        for context, measured in zip(row.contexts, row.seconds, strict=True):
            ramp = surface.curve(row.row).ramp(context, 1.0)
            assert surface.curve(row.row).at(context) == measured
            assert ramp.first_s == measured
            assert not ramp.extrapolated


@given(
    st.lists(seconds, min_size=35, max_size=35),
    st.integers(1, 64),
    st.floats(1, 2048),
)
def test_inside_the_grid_values_lie_between_the_four_neighbours(values: list[float], row: int, context: float) -> None:
    """Interpolation never leaves the range of the measured corners around a point, and is not flagged."""
    it = iter(values)
    cells = {r: {c: next(it) for c in CONTEXTS} for r in ROWS}
    r0, r1 = _around(ROWS, row)
    c0, c1 = _around(CONTEXTS, context)
    corners = [cells[r][c] for r in (r0, r1) for c in (c0, c1)]
    ramp = Surface(make_table(cells)).curve(row).ramp(context, 1.0)
    assert min(corners) * (1 - 1e-9) <= ramp.first_s <= max(corners) * (1 + 1e-9)
    assert not ramp.extrapolated


@given(st.integers(1, 64), st.floats(1, 2048))
def test_a_bilinear_truth_is_reproduced(row: int, context: float) -> None:
    """Linear between rows and in context: a + b·r + d·r·c is returned to rounding everywhere in the grid."""
    surface = Surface(make_table({r: {c: affine(r, c) for c in CONTEXTS} for r in ROWS}))
    assert surface.curve(row).at(context) == pytest.approx(1e-3 + 1e-4 * row + 1e-7 * row * context, rel=1e-9)


@given(tables(), st.integers(1, 1000), st.floats(0, 1e5), st.floats(0, 1e5))
def test_beyond_the_last_context_time_never_falls_and_is_flagged(
    table: Table, row: int, past: float, further: float
) -> None:
    """The extrapolated slope is never negative, whatever noise was measured."""
    curve = Surface(table).curve(row)
    begin = curve.knots[-1] + 1 + past
    assert curve.at(begin + further) >= curve.at(begin) > 0
    ramp = curve.ramp(begin, 1.0)
    assert ramp.extrapolated and ramp.num_steps == UNBOUNDED and ramp.slope_s >= 0


@given(tables(), st.integers(1, 500), st.integers(0, 4))
def test_beyond_the_last_row_time_never_falls_and_is_flagged(table: Table, more: int, which: int) -> None:
    """A larger batch or chunk than was measured takes at least as long as the largest that was."""
    last = table.rows[-1]
    context = last.contexts[which % len(last.contexts)]
    surface = Surface(table)
    farther, farthest = surface.curve(last.row + more), surface.curve(last.row + 2 * more)
    assert farthest.at(context) >= farther.at(context) >= surface.curve(last.row).at(context)
    assert farther.ramp(context, 1.0).extrapolated


def test_beyond_the_last_row_the_last_measured_slope_goes_on() -> None:
    """Rows 8 and 16 differ by 4 s at context 0, so row 32 takes 8 s more than row 16."""
    surface = Surface(make_table({8: {0: 1.0, 10: 1.0}, 16: {0: 5.0, 10: 6.0}}))
    assert surface.curve(32).at(0) == pytest.approx(5.0 + 8.0)
    assert surface.curve(32).at(10) == pytest.approx(6.0 + 10.0)


def test_below_the_grid_is_flat_and_flagged() -> None:
    """A context below the smallest measured one, or a row below the first, costs what the nearest measured did."""
    surface = Surface(make_table({4: {16: 1.0, 32: 2.0}, 8: {16: 3.0, 32: 4.0}}))
    below = surface.curve(4).ramp(10, 1.0)
    assert (below.first_s, below.slope_s, below.num_steps, below.extrapolated) == (1.0, 0.0, 6, True)
    assert surface.curve(2).at(16) == 1.0
    assert surface.curve(2).ramp(16, 1.0).extrapolated


@given(tables(), st.integers(1, 1000), st.floats(0, 1))
def test_a_prefill_that_attends_to_less_stays_positive(table: Table, row: int, share: float) -> None:
    """Down to no attended pair at all (context −row/2) at least a quarter of the first measured time remains, and time
    does not grow while attention shrinks."""
    curve = Surface(table, below="linear").curve(row)
    context = curve.knots[0] - share * row / 2
    assert 0.2499 * curve.values[0] <= curve.at(context) <= curve.values[0] * (1 + 1e-12)


@settings(max_examples=60)
@given(tables(), st.integers(1, 400), st.floats(-200, 4000), st.floats(0.05, 700), st.sampled_from(["flat", "linear"]))
def test_ramps_are_the_curve(table: Table, row: int, start: float, growth: float, below: str) -> None:
    """A chain of ramps gives the curve's own value at every step, and its flags say where nothing was measured."""
    curve = Surface(table, below).curve(row)
    start = max(start, curve.knots[0] - row / 2) if below == "linear" else start
    step = 0
    for _ in range(12):
        ramp = curve.ramp(start + growth * step, growth)
        assert ramp.num_steps >= 1
        for j in {0, 1, ramp.num_steps // 2, ramp.num_steps - 1} & set(range(min(ramp.num_steps, 10_000))):
            assert ramp.at(j) == pytest.approx(curve.at(start + growth * (step + j)), rel=1e-6)
            assert ramp.at(j) > 0
        if ramp.num_steps == UNBOUNDED:
            break
        step += ramp.num_steps


@given(tables(), st.integers(1, 400))
def test_the_increment_of_a_context_never_takes_time_away(table: Table, row: int) -> None:
    """It is 0 at the smallest context and never falls, though a noisy measurement may."""
    curve: Curve = Surface(table).increment(row)
    assert curve.values[0] == 0
    assert all(b >= a for a, b in pairwise(curve.values))
    assert curve.at(curve.knots[0] - 5) == 0


def test_rows_that_reach_less_far_are_flagged_where_one_of_them_ends() -> None:
    """Between a row measured to 512 and one measured to 2,048, a context of 1,000 is half extrapolation."""
    surface = Surface(make_table({8: {0: 1.0, 2048: 2.0}, 16: {0: 2.0, 512: 3.0}}))
    curve = surface.curve(12)
    assert not curve.ramp(500, 1.0).extrapolated
    assert not curve.ramp(512, 1.0).extrapolated
    assert curve.ramp(513, 1.0).extrapolated


def _around(grid: tuple[int, ...], x: float) -> tuple[int, int]:
    return max(g for g in grid if g <= x), min(g for g in grid if g >= x)
