"""Grids with holes: what is filled, what is left, and that no measurement, however wild, makes more work faster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simserve.step_time.operators.grid import bracket, fill_between, fill_flat, half_way, isotonic, leave_one_out
from simserve.step_time.operators.line import Line
from simserve.step_time.operators.mixed_grid import MixedGrid
from simserve.step_time.operators.rows import DecodeRows, PrefillRows

NAN = float("nan")
AXES = ((4.0, 8.0, 16.0), (0.0, 16.0, 64.0), (1.0, 2.0, 8.0), (8.0, 32.0))
times = st.floats(1e-6, 1e-2)


def test_holes_between_known_values_lie_on_the_line() -> None:
    """Inside: the straight line over the positions. Ends and lines of one value stay as they are."""
    values = np.array([[NAN, 2.0, NAN, 8.0, NAN], [NAN, 5.0, NAN, NAN, NAN]])
    found = fill_between(values, [0, 1, 2, 4, 8], 1)
    np.testing.assert_array_equal(found, [[NAN, 2.0, 4.0, 8.0, NAN], [NAN, 5.0, NAN, NAN, NAN]])
    flat = fill_flat(found, 1)
    np.testing.assert_array_equal(flat, [[2.0, 2.0, 4.0, 8.0, 8.0], [5.0] * 5])


@given(arrays(float, (4, 3, 5), elements=times))
def test_isotonic_along_one_axis_after_another_holds_along_all(values: np.ndarray) -> None:
    """Pool-adjacent-violators keeps order between lines: after three axes the values rise along each."""
    for axis in range(3):
        values = isotonic(values, axis)
    for axis in range(3):
        assert (np.diff(values, axis=axis) >= -1e-15).all()


def test_leaving_one_out_asks_the_neighbours() -> None:
    """On a line nothing is off; a point between known ones is judged by the nearest on either side, over a hole."""
    at = np.array([0.0, 1.0, 3.0, 7.0])
    np.testing.assert_allclose(leave_one_out(2 + 5 * at, at, 0), [NAN, 7.0, 17.0, NAN])
    np.testing.assert_allclose(leave_one_out(np.array([0.0, NAN, 9.0, 7.0]), at, 0), [NAN, NAN, 3.0, NAN])
    assert np.isnan(leave_one_out(np.array([1.0, 2.0]), at[:2], 0)).all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, (0, 0, False)), (4, (0, 0, True)), (5, (0, 1, True)), (16, (2, 2, True)), (17, (1, 2, False))],
)
def test_bracket(value: float, expected: tuple[int, int, bool]) -> None:
    """The places around a value; beyond the end, the one at half of it and the last."""
    assert bracket(AXES[0], value) == expected


def test_half_way_is_never_the_last_of_several() -> None:
    """A slope needs two places."""
    assert [half_way([1, 2, 3, 4, 8]), half_way([7, 8]), half_way([5])] == [3, 0, 0]


def test_a_line_is_measured_between_and_extrapolated_beyond() -> None:
    """Points exactly, also where they fall; flat below; beyond, the slope of the upper half, never downwards."""
    line = Line([2, 4, 8], [1.0, 3.0, 2.0])
    assert [line.at(x) for x in (1, 2, 3, 4, 6, 8)] == [
        *((1.0, True), (1.0, False), (2.0, False)),
        *((3.0, False), (2.5, False), (2.0, False)),
    ]
    assert line.at(16) == (2.0, True)
    assert Line([2, 4, 8], [1.0, 3.0, 4.0]).at(16) == (4.0 + 8 * 0.25, True)


@given(arrays(float, (3, 3), elements=times), st.integers(1, 40), st.integers(0, 100), st.integers(0, 100))
def test_attention_of_one_kind_never_falls_with_work(values: np.ndarray, row: int, context: int, more: int) -> None:
    """Whatever was measured: more context or one more row takes as long or longer, and some time."""
    prefill = PrefillRows(AXES[0], AXES[1], values)
    decode = DecodeRows(AXES[2], AXES[1], values)
    for rows in (prefill, decode):
        here = rows.curve(row).at(context)
        assert 0 < here <= rows.curve(row).at(context + more) * (1 + 1e-12)
        assert here <= rows.curve(row + 1).at(context) * (1 + 1e-12)
    packed = prefill.curve(row).at(-row / 2)
    assert 0 < packed <= prefill.curve(row).at(0) * (1 + 1e-12)


@given(
    arrays(float, (3, 3, 3, 2), elements=st.one_of(times, st.just(NAN))).filter(
        lambda values: np.isfinite(values[0, 0, 0, 0]) and np.isfinite(values[-1, -1, -1, -1])
    ),
    st.tuples(st.integers(1, 40), st.integers(-20, 100), st.integers(1, 20), st.integers(0, 100)),
    st.integers(0, 3),
    st.integers(1, 30),
)
def test_mixed_attention_never_falls_with_work(
    values: np.ndarray, point: tuple[int, int, int, int], axis: int, more: int
) -> None:
    """The same over all four axes, with holes: positive, and not shorter with more of anything."""
    grid = MixedGrid(AXES, values)
    tokens, context, decodes, decode_context = point
    context = max(context, -tokens // 2)
    here, _ = grid.at(tokens, context, decodes, decode_context)
    assert here > 0
    bigger = [tokens, context, decodes, decode_context]
    bigger[axis] += more
    if context >= 0 or axis != 0:
        assert here <= grid.at(*bigger)[0] * (1 + 1e-12)


@given(arrays(float, (3, 3, 3, 2), elements=times))
def test_monotone_measurements_are_returned_exactly(values: np.ndarray) -> None:
    """Where nothing contradicts physics, nothing is changed: every point of the grid is as measured, unflagged."""
    values = np.sort(np.sort(np.sort(np.sort(values, 0), 1), 2), 3)
    grid = MixedGrid(AXES, values)
    for place in np.ndindex(*values.shape):
        point = [axis[i] for axis, i in zip(AXES, place, strict=True)]
        assert grid.at(*point) == (pytest.approx(values[place], rel=1e-12), False)


def test_a_hole_that_neighbours_do_not_enclose_is_flagged() -> None:
    """A corner that was never measured is answered and flagged; a hole between measured points is neither's fault."""
    values = np.ones((3, 3, 3, 2))
    values[-1, -1, -1, -1] = NAN
    values[1, 1, 1, 0] = NAN
    grid = MixedGrid(AXES, values)
    assert grid.at(16, 64, 8, 32) == (1.0, True)
    assert grid.at(16, 64, 8, 8) == (1.0, False)
    assert grid.at(8, 16, 2, 8) == (1.0, False)
