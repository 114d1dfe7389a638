"""The steady window: exact for any stagger, blind to everything outside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.errors import CalibrationError
from calibrate.grid import Limits
from calibrate.server.client import Answer
from calibrate.server.grid import FULL, QUICK, STANDARD, make_points
from calibrate.server.window import lead_of, steady_window

ITL_S = 0.02


def _answer(times: list[float], counts: list[int] | None = None) -> Answer:
    return Answer(0.0, tuple(times), tuple(counts or range(1, len(times) + 1)), "usage of each event", 8, "length")


def _streams(begins: list[int], num_output: int) -> list[Answer]:
    """Streams whose first tokens come at the given steps. While not all have begun, a step takes ten times as long:
    that is the others' prefill."""
    last = max(begins)
    clock = [0.0]
    for step in range(last + num_output):
        clock.append(clock[-1] + (10 * ITL_S if step < last else ITL_S))
    return [_answer([clock[begin + i] for i in range(num_output)]) for begin in begins]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(2, 60))
def test_any_stagger_gives_the_same_itl(begins: list[int], num_output: int) -> None:
    """ITL is that of the steps in which all decode, however long prefills stall the early ones; if none is left, there
    is no window."""
    answers = _streams(begins, num_output)
    window = steady_window(answers)
    stagger = max(begins) - min(begins)
    assert lead_of(answers) == min(stagger + 1, num_output)
    if stagger > num_output - 2:
        assert window is None
        return
    assert window is not None
    assert window.itl_s == pytest.approx(ITL_S)
    assert window.num_tokens == num_output - 1 - stagger
    mean_begin = sum(begins) / len(begins)
    assert window.lead == pytest.approx(max(begins) - mean_begin + 1)
    assert window.mean_generated == pytest.approx(window.lead + window.num_tokens / 2)


def test_tokens_that_share_an_event_count_all() -> None:
    """Events of four tokens every four steps: the gap is a quarter of theirs."""
    window = steady_window([_answer([0.08 * i for i in range(1, 6)], [4 * i for i in range(1, 6)])])
    assert window is not None
    assert window.itl_s == pytest.approx(ITL_S)
    assert window.num_tokens == 16


@pytest.mark.parametrize("grid", [QUICK, STANDARD, FULL])
def test_held_out_points_lie_inside_and_are_new(grid) -> None:
    """No held-out point is also fitted, and each lies between fitted ones."""
    points = make_points(grid, Limits())
    fitted = {point[:4] for point in points if not point.held_out}
    held_out = [point for point in points if point.held_out]
    assert held_out and not fitted & {point[:4] for point in held_out}
    for point in held_out:
        rows = [p.row for p in points if p.phase == point.phase and not p.held_out]
        contexts = [p.num_context_tokens for p in points if p.phase == point.phase and not p.held_out]
        assert min(rows) < point.row < max(rows)
        assert min(contexts) <= point.num_context_tokens <= max(contexts)


def test_limits_cut_the_grid_and_cannot_cut_it_to_nothing() -> None:
    """Limits become the last rows and columns; fewer than two are refused."""
    points = make_points(STANDARD, Limits(max_batch_size=6, max_context=300, max_prefill_tokens=100))
    assert {p.batch_size for p in points if p.phase == "decode" and not p.held_out} == {1, 2, 4, 6}
    assert {p.num_context_tokens for p in points if p.phase == "decode" and not p.held_out} == {32, 256, 300}
    assert {p.row for p in points if p.phase == "prefill" and not p.held_out} == {16, 64, 100}
    fitted = {p[:4] for p in points if not p.held_out}
    assert not fitted & {p[:4] for p in points if p.held_out}
    with pytest.raises(CalibrationError, match="max_batch_size: must leave at least 2 values"):
        make_points(STANDARD, Limits(max_batch_size=1))
